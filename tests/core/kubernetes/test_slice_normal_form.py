"""Comparison of sent devices with the API server's stored form."""

import copy
from typing import Any

import pytest

from tensorfusion_dra.core.kubernetes import slice_normal_form
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu

TAINT = {"key": "tensor-fusion.ai/lost", "effect": "NoSchedule"}


def sent(**changes: Any) -> dict[str, Any]:
    (device,) = published_devices(gpu())
    return {**device.as_api(), **changes}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return slice_normal_form.normal([left]) == slice_normal_form.normal([right])


def test_quantities_are_compared_by_amount() -> None:
    kept = copy.deepcopy(sent())
    kept["capacity"]["vram"] = {
        "value": "81920Mi",
        "requestPolicy": {
            "default": "85899345920",
            "validRange": {"min": "1024Ki", "step": "1048576"},
        },
    }

    assert same(sent(), kept)


@pytest.mark.parametrize("key", ["value", "default", "min", "step"])
def test_different_amount_is_a_difference(key: str) -> None:
    kept = copy.deepcopy(sent())
    policy = kept["capacity"]["vram"]["requestPolicy"]
    places = {
        "value": kept["capacity"]["vram"],
        "default": policy,
        "min": policy["validRange"],
        "step": policy["validRange"],
    }

    places[key][key] = "2Mi"

    assert not same(sent(), kept)


@pytest.mark.parametrize("empty", [None, [], {}, False])
def test_empty_field_equals_an_absent_one(empty: object) -> None:
    assert same(sent(), sent(bindsToNode=empty))


def test_time_added_of_a_taint_is_ignored() -> None:
    ours = sent(taints=[TAINT])
    theirs = sent(taints=[{**TAINT, "timeAdded": "2026-01-01T00:00:00Z"}])

    assert same(ours, theirs)
    assert not same(ours, sent(taints=[{**TAINT, "effect": "NoExecute"}]))
    assert not same(ours, sent())
