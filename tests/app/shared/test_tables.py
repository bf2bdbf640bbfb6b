"""Amounts as people write them."""

import pytest

from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.core.kubernetes import quantity


@pytest.mark.parametrize(
    ("text", "expected"),
    [("71200m", "71.2"), ("1n", "0.000000001"), ("312", "312"), ("16Gi", "16Gi"), ("0", "0")],
)
def test_fractions_have_a_decimal_point(text: str, expected: str) -> None:
    assert streams.shown(quantity.parse(text)) == expected


def test_amounts_in_a_text() -> None:
    found = streams.with_points("tflops 271200m of 312 taken, 40m more, vram 10Mi, gpu-12m3")

    assert found == "tflops 271.2 of 312 taken, 0.04 more, vram 10Mi, gpu-12m3"
