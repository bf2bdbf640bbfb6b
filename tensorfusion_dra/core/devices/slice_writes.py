"""Reasons for which the node's slices are written."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.slices import Slice


class WriteReason(StrEnum):
    """Reason of a write.

    Attributes:
        START: The slices that this process found differ from what it publishes.
        DEVICES: Cards came or went.
        HEALTH: A card became unhealthy or healthy.
        VALUES: Attributes, capacities, labels or the owner changed.
        REPAIR: Another writer changed or deleted the slices.
        RETRY: The write before failed.
    """

    START = "start"
    DEVICES = "devices"
    HEALTH = "health"
    VALUES = "values"
    REPAIR = "repair"
    RETRY = "retry"


def change(before: Sequence[Slice], wanted: Sequence[Slice]) -> WriteReason:
    """Return the reason to write wanted slices that differ from those that were wanted before.

    Args:
        before: Empty if this process has not compared any slices yet.
        wanted: What is to be stored.
    """
    if not before:
        return WriteReason.START
    old, new = _by_name(before), _by_name(wanted)
    if old.keys() != new.keys():
        return WriteReason.DEVICES
    if any(_health(new[name]) != _health(device) for name, device in old.items()):
        return WriteReason.HEALTH
    return WriteReason.VALUES


def _by_name(slices: Sequence[Slice]) -> dict[str, Mapping[str, Any]]:
    return {device["name"]: device for item in slices for device in item["spec"]["devices"]}


def _health(device: Mapping[str, Any]) -> object:
    """Return what shows the device's health; the taint may be turned off, the phase is not."""
    return device["attributes"][names.ATTR_PHASE], device.get("taints")
