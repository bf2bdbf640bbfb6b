"""Taints that administrators put on devices by DeviceTaintRules, without changing the slices.

Source: dynamic-resource-allocation/resourceslice/tracker/tracker.go (applyPatches), release 1.37.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def applied(rules: Sequence[Document], slices: Sequence[Document]) -> list[Document]:
    """Return the slices with the taints that the rules add, as the scheduler sees them."""
    return [_tainted(rules, each) for each in slices]


def _tainted(rules: Sequence[Document], item: Document) -> Document:
    spec = item["spec"]
    selecting = [
        (selector.get("device"), rule["spec"]["taint"])
        for rule in rules
        # Without a selector a rule matches no device; with an empty one, all.
        if (selector := rule["spec"].get("deviceSelector")) is not None
        and selector.get("driver", spec["driver"]) == spec["driver"]
        and selector.get("pool", spec["pool"]["name"]) == spec["pool"]["name"]
    ]
    if not selecting:
        return item
    devices = [
        {
            **device,
            "taints": [
                *(device.get("taints") or ()),
                *(taint for name, taint in selecting if name in {None, device["name"]}),
            ],
        }
        for device in spec.get("devices") or ()
    ]
    return {**item, "spec": {**spec, "devices": devices}}
