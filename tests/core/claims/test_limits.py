"""The part of a card that a container may use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.claims import DEFAULTS, policy
from tests.support.gpus import gpu


def limit(
    tflops: str, vram: str, *, milli_tflops: int = 312_000, holding: SharePolicy = DEFAULTS
) -> Limit:
    consumed = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    return limits.wanted("gpu-0", gpu(milli_tflops=milli_tflops), consumed, holding)


@pytest.mark.parametrize(
    ("tflops", "percent"),
    [
        ("312", 100),
        ("311", 100),
        ("308.88", 99),
        ("308.881", 100),
        ("156", 50),
        ("156.001", 51),
        ("100", 33),
        ("3.12", 1),
        ("3.121", 2),
        ("1n", 1),
        ("0", 1),
        ("1000", 100),
    ],
)
def test_compute_is_a_percentage_rounded_up_and_within_1_to_100(tflops: str, percent: int) -> None:
    assert limit(tflops, "1Gi").sm_percent == percent
    assert limit("0", "1Gi", holding=policy(tflops=tflops)).sm_percent == percent


def test_a_fractional_card_is_divided_exactly() -> None:
    assert limit("35.6", "1Gi", milli_tflops=71_200).sm_percent == 50
    assert limit("35.601", "1Gi", milli_tflops=71_200).sm_percent == 51


@pytest.mark.parametrize(
    ("vram", "vram_bytes"), [("16Gi", 17_179_869_184), ("1Mi", 1_048_576), ("19074Mi", 20000538624)]
)
def test_memory_is_what_was_consumed_in_bytes(vram: str, vram_bytes: int) -> None:
    assert limit("1", vram).vram_bytes == vram_bytes


def test_who_names_one_limit_has_what_it_consumes_of_the_other() -> None:
    assert limit("78", "8Gi", holding=policy(vram="16Gi")) == Limit(
        sm_percent=25, vram_bytes=16 * GIB
    )
    assert limit("78", "8Gi", holding=policy(tflops="156")) == Limit(
        sm_percent=50, vram_bytes=8 * GIB
    )


def test_a_limit_that_is_its_request_holds_and_a_billionth_less_is_refused() -> None:
    assert limit("78", "8Gi", holding=policy(tflops="78", vram="8Gi")) == limit("78", "8Gi")

    for less, text in (
        (policy(tflops="77.999999999"), "tflops limit: found 77999999999n, expected at least its"),
        (policy(vram="8191Mi"), "vram limit: found 8191Mi, expected at least its request 8Gi"),
    ):
        with pytest.raises(ClaimError, match=f"gpu-0: {text}"):
            limit("78", "8Gi", holding=less)


@given(st.integers(0, 10**9), st.integers(1, 10**7))
def test_the_percentage_never_grants_less_than_was_consumed_nor_a_percent_more(
    milli_share: int, milli_card: int
) -> None:
    percent = limit(f"{milli_share}m", "1Mi", milli_tflops=milli_card).sm_percent

    assert 1 <= percent <= 100
    assert percent * milli_card >= 100 * min(milli_share, milli_card)
    assert (percent - 1) * milli_card < 100 * milli_share or percent == 1


@given(st.integers(1, 100), st.integers(0, 2**50))
def test_a_limit_survives_the_ledger(percent: int, vram_bytes: int) -> None:
    kept = Limit(sm_percent=percent, vram_bytes=vram_bytes)

    assert Limit.from_json(kept.as_json()) == kept


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ([], []),
        ([(10, 10), (20, 20)], [10, 20]),
        ([(10, 50), (20, 60)], [50, 50]),
        ([(10, 200), (20, 200)], [80, 20]),
        ([(10, 200), (20, 30), (30, 30)], [50, 20, 30]),
        ([(60, 60), (40, 90)], [60, 40]),
        # More is reserved than there is, after the pool shrank: nobody has more than that.
        ([(80, 90), (40, 50)], [80, 40]),
    ],
)
def test_what_is_left_goes_to_whoever_came_first(
    asked: list[tuple[int, int]], granted: list[int]
) -> None:
    assert limits.granted(100, asked) == granted


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6),
)
def test_what_is_granted_fits_the_card_and_is_at_least_the_request(
    total: int, asked: list[tuple[int, int]]
) -> None:
    granted = limits.granted(total, asked)

    requests = [request for request, _ in asked]
    assert all(size >= request for size, request in zip(granted, requests, strict=True))
    assert all(size <= max(pair) for size, pair in zip(granted, asked, strict=True))
    assert sum(granted) <= max(total, sum(requests))
    # No byte is kept back while somebody wants it.
    wanting = any(size < limit for size, (_, limit) in zip(granted, asked, strict=True))
    assert not wanting or sum(granted) >= total
