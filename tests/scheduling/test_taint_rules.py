"""Taints of DeviceTaintRules on the devices that the rules select."""

from typing import Any

import pytest

from tensorfusion_dra.scheduling import devices

OWN = {"key": "tensor-fusion.ai/unhealthy", "effect": "NoSchedule"}
ADDED = {"key": "maintenance", "value": "tonight", "effect": "NoExecute"}


def published(pool: str, *names: str) -> dict[str, Any]:
    devices = [{"name": name} for name in names]
    return {"spec": {"driver": "mine", "pool": {"name": pool}, "devices": devices}}


def rule(selector: dict[str, str] | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"taint": ADDED}
    return {"spec": spec if selector is None else {**spec, "deviceSelector": selector}}


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        (None, []),
        ({}, ["a", "b", "c"]),
        ({"driver": "mine"}, ["a", "b", "c"]),
        ({"driver": "other"}, []),
        ({"pool": "two"}, ["c"]),
        ({"device": "b"}, ["b"]),
        ({"driver": "mine", "pool": "two", "device": "b"}, []),
    ],
)
def test_a_rule_taints_what_all_of_its_criteria_select(
    selector: dict[str, str] | None, tainted: list[str]
) -> None:
    slices = [published("one", "a", "b"), published("two", "c")]

    found = devices.with_rules([rule(selector)], slices)

    found_devices = [device for each in found for device in each["spec"]["devices"]]
    assert [
        device["name"] for device in found_devices if device.get("taints") == [ADDED]
    ] == tainted


def test_taints_of_slice_and_rules_add_up_and_the_slice_stays() -> None:
    before = published("one", "a")
    before["spec"]["devices"][0]["taints"] = [OWN]

    (after,) = devices.with_rules([rule({}), rule({"device": "a"})], [before])

    assert after["spec"]["devices"][0]["taints"] == [OWN, ADDED, ADDED]
    assert before["spec"]["devices"][0]["taints"] == [OWN]
