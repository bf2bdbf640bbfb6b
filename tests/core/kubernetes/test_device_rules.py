"""The API server's rules for one device; each verdict was observed on a 1.36 API server."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.kubernetes import device_rules
from tests.core.devices.slice_documents import (
    device_with_policy,
    device_with_range,
    int_attributes,
    plain_device,
    taint,
)

Json = dict[str, Any]

SEMVER: Final = "must be a string compatible with semver.org spec 2.0.0"


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "gpu-8f3a"])
def test_valid_device_name(name: str) -> None:
    assert device_rules.violations(plain_device(name)) == ()


@pytest.mark.parametrize("name", ["", "GPU", "a" * 64, "-a", "a-", "a.b", "a_b", "é", "a\n"])
def test_device_name_that_is_no_label_is_refused(name: str) -> None:
    (found,) = device_rules.violations(plain_device(name))

    assert found.startswith("name: Invalid value")


@pytest.mark.parametrize(
    "key", ["model", "_x", "A1", "a" * 32, "example.com/model", "A.b/c", "a" * 63 + "/b"]
)
def test_key_is_an_identifier_with_an_optional_domain(key: str) -> None:
    found = plain_device(attributes={key: {"bool": True}}, capacity={key: {"value": "1"}})

    assert device_rules.violations(found) == ()


@pytest.mark.parametrize(
    "key", ["", "1a", "a-b", "a" * 33, "/a", "a/", "a" * 64 + "/b", "a_b/c", "é", "a/b/c", "a\n"]
)
def test_malformed_key_is_refused(key: str) -> None:
    for field, value in (("attributes", {"int": 1}), ("capacity", {"value": "1"})):
        entry: Json = {field: {key: value}}
        found = device_rules.violations(plain_device(**entry))

        assert found
        assert all(text.startswith(f"{field}: ") for text in found)


@pytest.mark.parametrize(
    "value",
    [
        {"int": 0},
        {"int": 2**63 - 1},
        {"int": -(2**63)},
        {"bool": False},
        {"string": ""},
        {"string": "a" * 64},
        {"string": "é" * 32},
        {"version": "0.0.0"},
        {"version": "1.2.3-rc.1+build.01"},
        {"version": "550.54.15"},
        {"int": 1, "bool": None},
    ],
)
def test_attribute_with_one_value_of_its_type_is_valid(value: Json) -> None:
    assert device_rules.violations(plain_device(attributes={"a": value})) == ()


@pytest.mark.parametrize(
    ("value", "violation"),
    [
        ({"int": 2**63}, "attributes[a].int: Invalid value"),
        ({"string": "a" * 65}, "attributes[a].string: Too long: may not be more than 64 bytes"),
        ({"string": "é" * 33}, "attributes[a].string: Too long: may not be more than 64 bytes"),
        ({"version": "v1.2.3"}, f'attributes[a].version: Invalid value: "v1.2.3": {SEMVER}'),
        ({"version": "12.4"}, "attributes[a].version: Invalid value"),
        ({"version": "535.104.05"}, "attributes[a].version: Invalid value"),
        ({"version": "1.2.3-01"}, "attributes[a].version: Invalid value"),
        ({"version": "1.2.3\n"}, "attributes[a].version: Invalid value"),
        ({"version": "1.2.3-" + "a" * 60}, "attributes[a].version: Too long"),
    ],
)
def test_malformed_attribute_is_refused(value: Json, violation: str) -> None:
    (found,) = device_rules.violations(plain_device(attributes={"a": value}))

    assert found.startswith(violation)


def test_at_most_32_attributes_and_capacities_together() -> None:
    fits = plain_device(attributes=int_attributes(31))
    one_more = plain_device(attributes=int_attributes(32))

    assert device_rules.violations(fits) == ()
    assert str(device_rules.violations(one_more)) == (
        "('Invalid value: 33: the total number of attributes and capacities must not exceed 32',)"
    )


@pytest.mark.parametrize(
    "taints",
    [
        [taint()] * 16,
        [taint(value="x", effect="NoExecute", timeAdded="2026-01-01T00:00:00Z")],
        [taint(effect="None", value="")],
    ],
)
def test_valid_taints(taints: list[Json]) -> None:
    assert device_rules.violations(plain_device(taints=taints)) == ()


@pytest.mark.parametrize(
    ("taints", "violation"),
    [
        ([taint()] * 17, "taints: Too many: 17: must have at most 16 items"),
        ([taint(key="")], "taints[0].key: Invalid value"),
        ([taint(key="a b")], "taints[0].key: Invalid value"),
        ([taint(key="A.b/c")], "taints[0].key: Invalid value"),
        ([taint(value="x y")], "taints[0].value: Invalid value"),
        ([taint(value="x" * 64)], "taints[0].value: Invalid value"),
        ([taint(effect="")], "taints[0].effect: Required value"),
        (
            [taint(effect="Never")],
            'taints[0].effect: Unsupported value: "Never": supported values: "NoExecute",'
            ' "NoSchedule", "None"',
        ),
    ],
)
def test_malformed_taints_are_refused(taints: list[Json], violation: str) -> None:
    (found,) = device_rules.violations(plain_device(taints=taints))

    assert found.startswith(violation)


@pytest.mark.parametrize("multiple", [None, False])
def test_request_policy_needs_allow_multiple_allocations(multiple: bool | None) -> None:
    found = {**device_with_policy(default="1"), "allowMultipleAllocations": multiple}

    assert device_rules.violations(found) == (
        "capacity[vram].requestPolicy: Forbidden: allowMultipleAllocations must be true",
    )


@pytest.mark.parametrize(
    "fine",
    [
        device_with_policy(),
        device_with_policy(default="-5"),
        device_with_policy(default="1000"),
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
    assert device_rules.violations(fine) == ()


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (
            device_with_policy(validRange={"min": "1"}),
            ".default: Required value: required when validRange",
        ),
        (device_with_policy(default="1", validRange={}), ".validRange.min: Required value"),
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
    found = device_rules.violations(broken)

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

    assert bool(device_rules.violations(found)) is (off % step != 0)
