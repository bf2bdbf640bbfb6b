"""Comparison of devices with their stored form: canonical quantities, dropped fields."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import QuantityError

GATE_CONSUMABLE_CAPACITY: Final = "DRAConsumableCapacity"
GATE_DEVICE_TAINTS: Final = "DRADeviceTaints"
GATE_BINDING_CONDITIONS: Final = "DRADeviceBindingConditions"

_GATES: Final = (GATE_CONSUMABLE_CAPACITY, GATE_DEVICE_TAINTS, GATE_BINDING_CONDITIONS)

KUBERNETES_DROPS: Final = tuple(
    frozenset(gates) for size in range(1, len(_GATES) + 1) for gates in combinations(_GATES, size)
)
"""Sets of feature gates that may be off together, the smallest first."""

Devices = Sequence[Mapping[str, Any]]


def normal(devices: Devices) -> list[object]:
    """Return the devices in a form that is equal wherever the API server sees no difference.

    Quantities become numbers, so that 1024Mi equals 1Gi. Empty fields are dropped, so that absent
    equals empty. The `timeAdded` of taints is dropped, because the API server sets it.
    """
    found: list[object] = []
    for device in devices:
        fields = {key: value for key, value in device.items() if value not in (None, [], {}, False)}
        if "capacity" in fields:
            fields["capacity"] = _normal_amounts(fields["capacity"])
        if "taints" in fields:
            fields["taints"] = [
                {key: value for key, value in taint.items() if key != "timeAdded"}
                for taint in fields["taints"]
            ]
        found.append(fields)
    return found


def same(some: Devices, others: Devices) -> bool:
    """Return True if the API server sees no difference between the devices."""
    return some == others or normal(some) == normal(others)


def without(devices: Devices, gates: frozenset[str]) -> list[Mapping[str, Any]]:
    """Return the devices as an API server with these feature gates off would store them."""
    return [_device_without(device, gates) for device in devices] if gates else list(devices)


def _device_without(device: Mapping[str, Any], gates: frozenset[str]) -> Mapping[str, Any]:
    kept = dict(device)
    if GATE_CONSUMABLE_CAPACITY in gates:
        kept.pop("allowMultipleAllocations", None)
        kept["capacity"] = {
            name: {key: value for key, value in entry.items() if key != "requestPolicy"}
            for name, entry in (device.get("capacity") or {}).items()
        }
    if GATE_DEVICE_TAINTS in gates:
        kept.pop("taints", None)
    if GATE_BINDING_CONDITIONS in gates:
        kept.pop("bindingConditions", None)
        kept.pop("bindingFailureConditions", None)
    return kept


def _normal_amounts(value: object) -> object:
    """Return the same structure with every quantity as a number of billionths."""
    if isinstance(value, Mapping):
        return {key: _normal_amounts(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_normal_amounts(item) for item in value]
    try:
        return quantity.parse(value).nano
    except QuantityError:
        return value
