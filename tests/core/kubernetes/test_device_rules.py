"""The API's rules for devices, and the normal form of slices."""

from typing import Any

import pytest

from dra_simulator.api import object_rules
from tensorfusion_dra.core.kubernetes import device_rules, releases
from tests.core.devices.slice_documents import (
    device_with_policy,
    device_with_range,
    int_attributes,
    plain_device,
    taint,
)
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu

Json = dict[str, Any]


def violations(device: Json) -> tuple[str, ...]:
    errors = object_rules.device_errors("", device, releases.NEWEST)
    return tuple(map(str, errors))


KEYS = ("model", "_x", "A1", "a" * 32, "example.com/model", "A.b/c", "a" * 63 + "/b")
ATTRIBUTES: tuple[Json, ...] = (
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
)


@pytest.mark.parametrize(
    "valid",
    [
        *(plain_device(name) for name in ("a", "0", "a" * 63, "gpu-8f3a")),
        *(
            plain_device(attributes={key: {"bool": True}}, capacity={key: {"value": "1"}})
            for key in KEYS
        ),
        *(plain_device(attributes={"a": value}) for value in ATTRIBUTES),
        plain_device(attributes=int_attributes(31)),
        plain_device(taints=[taint()] * 16),
        plain_device(
            taints=[taint(value="x", effect="NoExecute", timeAdded="2026-01-01T00:00:00Z")]
        ),
        plain_device(taints=[taint(effect="None", value="")]),
        device_with_policy(),
        device_with_policy(default="-5"),
        device_with_policy(default="1000"),
        device_with_range(min="1"),
        device_with_range(min="10", max="10"),
        device_with_range(min="-5"),
        device_with_range(min="0", step="5", max="20"),
        device_with_range("0.5", min="0.4"),
        device_with_range(min="0.5", step="0.5"),
        device_with_range(min="0", step="0.5"),
        device_with_range(min="0", step="2.5", max="12.5"),
        device_with_policy("1Gi", default="1Gi", validRange={"min": "1Mi", "step": "1Mi"}),
    ],
)
def test_valid_device(valid: Json) -> None:
    assert violations(valid) == ()


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        *(
            ({"name": name}, "name: Invalid value")
            for name in ("", "GPU", "a" * 64, "-a", "a-", "a.b", "a_b", "é", "a\n")
        ),
        *(
            ({field: {key: value}}, f"{field}: ")
            for key in (
                *("", "1a", "a-b", "a" * 33, "/a", "a/", "a" * 64 + "/b"),
                *("a_b/c", "é", "a/b/c", "a\n"),
            )
            for field, value in (("attributes", {"int": 1}), ("capacity", {"value": "1"}))
        ),
        (
            {"attributes": int_attributes(32)},
            "Invalid value: 33: the total number of attributes and capacities must not exceed 32",
        ),
        ({"attributes": {"a": {"int": 2**63}}}, "attributes[a].int: Invalid value"),
        (
            {"attributes": {"a": {"string": "a" * 65}}},
            "attributes[a].string: Too long: may not be more than 64 bytes",
        ),
        (
            {"attributes": {"a": {"string": "é" * 33}}},
            "attributes[a].string: Too long: may not be more than 64 bytes",
        ),
        (
            {"attributes": {"a": {"version": "v1.2.3"}}},
            'attributes[a].version: Invalid value: "v1.2.3": must be a string compatible with '
            "semver.org spec 2.0.0",
        ),
        ({"attributes": {"a": {"version": "12.4"}}}, "attributes[a].version: Invalid value"),
        ({"attributes": {"a": {"version": "535.104.05"}}}, "attributes[a].version: Invalid value"),
        ({"attributes": {"a": {"version": "1.2.3-01"}}}, "attributes[a].version: Invalid value"),
        ({"attributes": {"a": {"version": "1.2.3\n"}}}, "attributes[a].version: Invalid value"),
        (
            {"attributes": {"a": {"version": "1.2.3-" + "a" * 60}}},
            "attributes[a].version: Too long",
        ),
        ({"taints": [taint()] * 17}, "taints: Too many: 17: must have at most 16 items"),
        ({"taints": [taint(key="")]}, "taints[0].key: Invalid value"),
        ({"taints": [taint(key="a b")]}, "taints[0].key: Invalid value"),
        ({"taints": [taint(key="A.b/c")]}, "taints[0].key: Invalid value"),
        ({"taints": [taint(value="x y")]}, "taints[0].value: Invalid value"),
        ({"taints": [taint(value="x" * 64)]}, "taints[0].value: Invalid value"),
        ({"taints": [taint(effect="")]}, "taints[0].effect: Required value"),
        (
            {"taints": [taint(effect="Never")]},
            'taints[0].effect: Unsupported value: "Never": supported values: "NoExecute",'
            ' "NoSchedule", "None"',
        ),
    ],
)
def test_malformed_or_too_many_names_attributes_and_taints_are_refused(
    fields: Json, violation: str
) -> None:
    found = violations({**plain_device(), **fields})

    assert found
    assert all(text.startswith(violation) for text in found)


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        *(
            (
                {**device_with_policy(default="1"), "allowMultipleAllocations": multiple},
                ": Forbidden: allowMultipleAllocations must be true",
            )
            for multiple in (None, False)
        ),
        (
            device_with_policy(validRange={"min": "1"}),
            ".default: Required value: required when validRange",
        ),
        (device_with_policy(default="1", validRange={}), ".validRange.min: Required value"),
        (device_with_range(min="101"), '.validRange.min: Invalid value: "101": min is larger than'),
        (
            device_with_range(min="20"),
            '.validRange.default: Invalid value: "10": default is less than min',
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
            '.validRange.default: Invalid value: "10": default is more',
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
            device_with_range(min="0.5", step="1"),
            '.validRange.step: Invalid value: "10": value is not a multiple of a given step (1)',
        ),
        (
            device_with_range("0.0005", min="0"),
            '.validRange.default: Invalid value: "500u": value cannot be represented as a milli',
        ),
        (
            device_with_range(min="1", step="0"),
            '.validRange.step: Invalid value: "0": must be greater than zero',
        ),
        (
            device_with_range(min="-5", step="5"),
            '.validRange.min: Invalid value: "-5": must be greater than or equal to 0',
        ),
        (
            device_with_policy("1G", default="1G", validRange={"min": "1Mi", "step": "1Mi"}),
            '.validRange.step: Invalid value: "1G": value is not a multiple of a given step (1Mi)',
        ),
    ],
)
def test_malformed_request_policy_is_refused(broken: Json, violation: str) -> None:
    found = violations(broken)

    expected = f"capacity[vram].requestPolicy{violation}"
    assert any(text.startswith(expected) for text in found), found


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"min": "0", "step": "2.5", "default": "10"}, 1),  # 10 is no multiple of 3
        ({"min": "0.5", "step": "1", "default": "10"}, 1),  # 9.5 is none of 1
        ({"min": "0", "step": "0.5", "default": "10"}, 0),
        ({"min": "0", "step": "3", "default": "10"}, 1),
    ],
)
def test_capacity_of_a_package_is_one_that_each_release_stores(fields: Json, refused: int) -> None:
    default = fields.pop("default")
    entry = {"value": "100", "requestPolicy": {"default": default, "validRange": fields}}

    assert len([*device_rules.capacity_errors("capacity", entry)]) == refused


(PUBLISHED,) = published_devices(gpu())
SENT: Json = PUBLISHED.as_api()


def with_vram(value: str, default: str, least: str, step: str) -> Json:
    policy = {"default": default, "validRange": {"min": least, "step": step}}
    vram = {"vram": {"value": value, "requestPolicy": policy}}
    return {**SENT, "capacity": {**SENT["capacity"], **vram}}


EMPTY: tuple[object, ...] = (None, [], {}, False)


def tainted(**fields: str) -> Json:
    return {**SENT, "taints": [{"key": "tensor-fusion.ai/lost", "effect": "NoSchedule", **fields}]}


@pytest.mark.parametrize(
    ("left", "right", "is_same"),
    [
        # Quantities are compared by amount.
        (SENT, with_vram("80Gi", "80Gi", "1Mi", "1Mi"), True),
        (SENT, with_vram("81920Mi", "85899345920", "1024Ki", "1048576"), True),
        (SENT, with_vram("2Mi", "80Gi", "1Mi", "1Mi"), False),
        (SENT, with_vram("80Gi", "2Mi", "1Mi", "1Mi"), False),
        (SENT, with_vram("80Gi", "80Gi", "2Mi", "1Mi"), False),
        (SENT, with_vram("80Gi", "80Gi", "1Mi", "2Mi"), False),
        # An empty field equals an absent one.
        *((SENT, {**SENT, "bindsToNode": empty}, True) for empty in EMPTY),
        # When a taint was added is ignored.
        (tainted(), tainted(timeAdded="2026-01-01T00:00:00Z"), True),
        (tainted(), tainted(effect="NoExecute"), False),
        (tainted(), SENT, False),
    ],
)
def test_devices_are_compared_by_what_they_mean(left: Json, right: Json, *, is_same: bool) -> None:
    assert (device_rules.normal([left]) == device_rules.normal([right])) is is_same
