"""The API server's rules for capacities; each verdict was observed on a 1.36 API server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.kubernetes import slice_rules
from tests.core.devices.slice_documents import device_with_policy, device_with_range, plain_device

Json = dict[str, Any]


@pytest.mark.parametrize("value", ["0", "-1", "0.5", "1e3", "40Gi", 5])
def test_any_quantity_is_a_valid_capacity(value: object) -> None:
    assert slice_rules.device_violations(plain_device(capacity={"vram": {"value": value}})) == ()


@pytest.mark.parametrize("value", ["", "1 Gi", "abc", True, [], "1K"])
def test_capacity_that_is_no_quantity_is_refused(value: object) -> None:
    (found,) = slice_rules.device_violations(plain_device(capacity={"vram": {"value": value}}))

    assert found.startswith("capacity[vram].value: Invalid value")


def test_capacity_without_value_counts_as_zero() -> None:
    assert slice_rules.device_violations(plain_device(capacity={"vram": {}})) == ()


@pytest.mark.parametrize("multiple", [None, False])
def test_request_policy_needs_allow_multiple_allocations(multiple: bool | None) -> None:
    found = {**device_with_policy(default="1"), "allowMultipleAllocations": multiple}

    assert slice_rules.device_violations(found) == (
        "capacity[vram].requestPolicy: Forbidden: allowMultipleAllocations must be true",
    )


@pytest.mark.parametrize(
    "fine",
    [
        device_with_policy(),
        device_with_policy(default="-5"),
        device_with_policy(default="1000"),
        device_with_policy(default="2", validValues=["1", "2"]),
        device_with_policy(default="1", validValues=[str(value) for value in range(1, 11)]),
        device_with_policy(default="100", validValues=["100"]),
        device_with_policy(default="1", validValues=[]),
        device_with_range(min="1"),
        device_with_range(min="10", max="10"),
        device_with_range(min="-5", step="5"),
        device_with_range(min="0", step="5", max="20"),
        device_with_range(min="0", step="-1"),
        device_with_range("0.5", min="0.4"),
        # Fractions are rounded up first: 0.5 to 1, and then (10 - 1) is a multiple of 1.
        device_with_range(min="0.5", step="1"),
        device_with_range(min="0", step="0.5"),
        device_with_policy("1Gi", default="1Gi", validRange={"min": "1Mi", "step": "1Mi"}),
    ],
)
def test_valid_request_policy(fine: Json) -> None:
    assert slice_rules.device_violations(fine) == ()


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (
            device_with_policy(default="1", validValues=["1"], validRange={"min": "1"}),
            ": Forbidden: exactly one policy can be specified",
        ),
        (
            device_with_policy(validValues=["1"]),
            ".default: Required value: required when validValues is",
        ),
        (
            device_with_policy(validRange={"min": "1"}),
            ".default: Required value: required when validRange",
        ),
        (device_with_policy(default="1", validRange={}), ".validRange.min: Required value"),
        (
            device_with_policy(default="3", validValues=["1", "2"]),
            '.validValues: Invalid value: "3": default value is not valid',
        ),
        (
            device_with_policy(default="2", validValues=["2", "1"]),
            '.validValues[1]: Invalid value: "1": values must be sorted in ascending order',
        ),
        (
            device_with_policy(default="2", validValues=["2", "2"]),
            '.validValues[1]: Duplicate value: "2"',
        ),
        # Duplicates are found among whole numbers: fractions are rounded up first.
        (
            device_with_policy(default="1500m", validValues=["1.1", "1.5"]),
            '.validValues[1]: Duplicate value: "2"',
        ),
        (
            device_with_policy(default="200", validValues=["200"]),
            '.validValues[0]: Invalid value: "200": option is larger than capacity value: 100',
        ),
        (
            device_with_policy(default="1", validValues=[str(value) for value in range(11)]),
            ".validValues: Too many: 11: must have at most 10 items",
        ),
        (device_with_policy(default="x"), '.default: Invalid value: "x": found'),
        (
            device_with_policy(default="1", validRange={"min": "x"}),
            ".validRange.min: Invalid value",
        ),
        (device_with_policy(default="1", validValues=["x"]), ".validValues[0]: Invalid value"),
        (device_with_policy(default="1", validValues="1"), ".validValues: Invalid value"),
        (device_with_policy(default="1", validRange="1"), ".validRange: Invalid value"),
        (device_with_range(min="101"), '.validRange.min: Invalid value: "101": min is larger than'),
        (
            device_with_range(min="20"),
            '.validRange.min: Invalid value: "10": default is less than min',
        ),
        (
            device_with_range(min="1", max="0"),
            '.validRange.max: Invalid value: "1": min is larger than',
        ),
        (
            device_with_range(min="1", max="200"),
            '.validRange.max: Invalid value: "200": max is larger',
        ),
        (
            device_with_range(min="1", max="5"),
            '.validRange.max: Invalid value: "10": default is more',
        ),
        (
            device_with_range(min="1", step="100"),
            '.validRange.step: Invalid value: "100": one step 101',
        ),
        (
            device_with_range(min="0", step="3"),
            '.validRange.step: Invalid value: "10": value is not a multiple of a given step (3)',
        ),
        (
            device_with_range(min="0", step="5", max="21"),
            '.validRange.step: Invalid value: "21": value is not a multiple of a given step (5)',
        ),
        (
            device_with_range(min="1", step="0"),
            '.validRange.step: Invalid value: "0": must not be zero',
        ),
        (
            device_with_policy("1G", default="1G", validRange={"min": "1Mi", "step": "1Mi"}),
            '.validRange.step: Invalid value: "1G": value is not a multiple of a given step (1Mi)',
        ),
    ],
)
def test_malformed_request_policy_is_refused(broken: Json, violation: str) -> None:
    found = slice_rules.device_violations(broken)

    expected = f"capacity[vram].requestPolicy{violation}"
    assert any(text.startswith(expected) for text in found), found


@given(
    least=st.integers(0, 50), step=st.integers(1, 50), steps=st.integers(0, 50), off=st.integers(0)
)
def test_default_is_a_whole_number_of_steps_above_the_minimum(
    least: int, step: int, steps: int, off: int
) -> None:
    default = least + step * steps + off % step
    found = device_with_policy(
        "10000", default=str(default), validRange={"min": str(least), "step": str(step)}
    )

    assert bool(slice_rules.device_violations(found)) is (off % step != 0)
