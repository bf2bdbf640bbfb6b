"""The part of a card that a container may use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import limits, quantity
from tensorfusion_dra.core.limits import Limit
from tests.support.gpus import gpu


def limit(tflops: str, vram: str, *, milli_tflops: int = 312_000) -> Limit:
    consumed = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    return limits.of_consumed(gpu(milli_tflops=milli_tflops), consumed)


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


def test_a_fractional_card_is_divided_exactly() -> None:
    assert limit("35.6", "1Gi", milli_tflops=71_200).sm_percent == 50
    assert limit("35.601", "1Gi", milli_tflops=71_200).sm_percent == 51


@pytest.mark.parametrize(
    ("vram", "vram_bytes"), [("16Gi", 17_179_869_184), ("1Mi", 1_048_576), ("19074Mi", 20000538624)]
)
def test_memory_is_what_was_consumed_in_bytes(vram: str, vram_bytes: int) -> None:
    assert limit("1", vram).vram_bytes == vram_bytes


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
