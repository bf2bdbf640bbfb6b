"""Consumption of a shared device by claims, which never exceeds its capacity."""

import pytest

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.scheduling import devices
from tensorfusion_dra.scheduling.devices import Capacity, Policy

Q = quantity.parse


def ranged(
    value: str, least: str, *, most: str | None = None, step: str | None = None, default: str = ""
) -> Capacity:
    """A capacity with a validRange; the default is all of it unless another is given."""
    policy = Policy(
        default=Q(default or value),
        least=Q(least),
        most=None if most is None else Q(most),
        step=None if step is None else Q(step),
    )
    return Capacity(Q(value), policy)


TFLOPS = ranged("312", "0")
VRAM = ranged("40Gi", "1Mi", step="1Mi")
STEPS = ranged("100", "10", most="50", step="20", default="10")
FRACTION_STEPS = ranged("100", "200m", step="1", default="200m")
VALUES = Capacity(Q("40"), Policy(default=Q("40"), valid_values=(Q("10"), Q("20"), Q("40"))))
DEFAULT_ONLY = Capacity(Q("40"), Policy(default=Q("5")))
PLAIN = Capacity(Q("40"))


@pytest.mark.parametrize(
    ("capacity", "requested", "expected"),
    [
        (TFLOPS, "71200m", "71200m"),
        (TFLOPS, "71.2", "71200m"),
        (TFLOPS, "0", "0"),
        (TFLOPS, "-100", "0"),
        (TFLOPS, None, "312"),
        (VRAM, "20000000001", "19074Mi"),
        (VRAM, "16Gi", "16Gi"),
        (VRAM, "1", "1Mi"),
        (VRAM, "-1Gi", "1Mi"),
        (VRAM, None, "40Gi"),
        (STEPS, "10", "10"),
        (STEPS, "11", "30"),
        (STEPS, "30500m", "50"),
        (FRACTION_STEPS, "100m", "200m"),
        # Quantity.Value() rounds the range's minimum up as well.
        (FRACTION_STEPS, "500m", "1"),
        (FRACTION_STEPS, "1500m", "2"),
        (VALUES, "1", "10"),
        (VALUES, "15", "20"),
        (VALUES, "41", "41"),
        (DEFAULT_ONLY, None, "5"),
        (DEFAULT_ONLY, "7", "7"),
        (DEFAULT_ONLY, "-7", "-7"),
        (PLAIN, None, "40"),
        (PLAIN, "7", "7"),
        (PLAIN, "-7", "-7"),
    ],
)
def test_a_request_consumes_the_rounded_or_the_default_amount(
    capacity: Capacity, requested: str | None, expected: str
) -> None:
    amounts = {} if requested is None else {"c": Q(requested)}

    consumed = devices.consumed(amounts, {"c": capacity})

    assert str(consumed["c"]) == expected


@pytest.mark.parametrize(
    ("capacity", "requested", "taken", "reason"),
    [
        (TFLOPS, "312", "0", None),
        (TFLOPS, "312", "1n", "c 1n of 312 taken, 312 more do not fit"),
        (TFLOPS, "71200m", "240800m", None),
        (TFLOPS, "71200m", "240801m", "do not fit"),
        (TFLOPS, "312001m", "0", "do not fit"),
        (STEPS, "50", "0", None),
        (STEPS, "51", "0", "c 70 is not allowed by its requestPolicy"),
        (VALUES, "40", "0", None),
        (VALUES, "41", "0", "c 41 is not allowed by its requestPolicy"),
        (PLAIN, None, "0", None),
        (PLAIN, None, "1", "do not fit"),
        (PLAIN, "39", "1", None),
    ],
)
def test_a_request_fits_or_is_refused_with_a_reason(
    capacity: Capacity, requested: str | None, taken: str, reason: str | None
) -> None:
    amounts = {} if requested is None else {"c": Q(requested)}

    found = devices.shortage(amounts, {"c": capacity}, {"c": Q(taken)})

    assert (reason is None) == (found is None)
    assert found is None or str(reason) in found.text


def test_without_a_minimum_a_negative_request_frees_capacity() -> None:
    taken = devices.consumed({"c": Q("-40")}, {"c": PLAIN})

    assert devices.shortage({"c": Q("80")}, {"c": PLAIN}, taken) is None
