"""Limits of a share, and their division among the tenants of a card."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.kubernetes import quantity
from tests.support.builders.gpus import gpu
from tests.support.builders.policies import DEFAULTS, share_policy


def wanted_limit(
    tflops: str, vram: str, *, milli_tflops: int = 312_000, share_policy: SharePolicy = DEFAULTS
) -> Limit:
    consumed = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    return limits.wanted("gpu-0", gpu(milli_tflops=milli_tflops), consumed, share_policy)


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
    assert wanted_limit(tflops, "1Gi").sm_percent == percent
    assert wanted_limit("0", "1Gi", share_policy=share_policy(tflops=tflops)).sm_percent == percent


@given(st.integers(0, 10**9), st.integers(1, 10**7))
def test_percentage_is_the_consumed_amount_rounded_up_by_less_than_one(
    milli_share: int, milli_card: int
) -> None:
    percent = wanted_limit(f"{milli_share}m", "1Mi", milli_tflops=milli_card).sm_percent

    assert 1 <= percent <= 100
    assert percent * milli_card >= 100 * min(milli_share, milli_card)
    assert (percent - 1) * milli_card < 100 * milli_share or percent == 1


@pytest.mark.parametrize(
    ("demands", "granted"),
    [
        ([], []),
        ([(10, 10), (20, 20)], [10, 20]),
        ([(10, 50), (20, 60)], [50, 50]),
        ([(10, 200), (20, 200)], [80, 20]),
        ([(10, 200), (20, 30), (30, 30)], [50, 20, 30]),
        ([(60, 60), (40, 90)], [60, 40]),
        # More is reserved than the card has, after its pool shrank: nothing is lent.
        ([(80, 90), (40, 50)], [80, 40]),
    ],
)
def test_spare_amount_is_lent_first_come_first_served(
    demands: list[tuple[int, int]], granted: list[int]
) -> None:
    assert limits.granted(100, demands) == granted


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6),
)
def test_granted_limits_fit_the_card_and_cover_the_requests(
    total: int, demands: list[tuple[int, int]]
) -> None:
    granted = limits.granted(total, demands)

    requests = [request for request, _ in demands]
    assert all(size >= request for size, request in zip(granted, requests, strict=True))
    assert all(size <= max(pair) for size, pair in zip(granted, demands, strict=True))
    assert sum(granted) <= max(total, sum(requests))
    # Nothing is left over while a tenant wants more.
    wanting = any(size < limit for size, (_, limit) in zip(granted, demands, strict=True))
    assert not wanting or sum(granted) >= total
