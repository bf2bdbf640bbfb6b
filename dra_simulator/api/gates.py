"""Feature gates, and the fields that the API server silently drops while a gate is disabled.

An object that already used a gate's fields was written before the gate was disabled. It keeps them.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from dra_simulator.api.schema import elements

Json = dict[str, object]

DEFAULT_GATES: Final = frozenset(
    {
        "DRAAdminAccess",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
    }
)
"""The gates that control fields and are enabled by default in Kubernetes 1.36.

Known and disabled by default: DRAListTypeAttributes, DRANodeAllocatableResources.
"""

_SLICE_FIELDS: Final = {"DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection")}
_DEVICE_FIELDS: Final = {
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceBindingConditions": (
        "bindingConditions",
        "bindingFailureConditions",
        "bindsToNode",
    ),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRANodeAllocatableResources": ("nodeAllocatableResourceMappings",),
}
_CAPACITY_FIELDS: Final = {"DRAConsumableCapacity": ("requestPolicy",)}
_ATTRIBUTE_FIELDS: Final = {"DRAListTypeAttributes": ("bools", "ints", "strings", "versions")}
_REQUEST_FIELDS: Final = {"DRAPrioritizedList": ("firstAvailable",)}
_EXACT_FIELDS: Final = {
    "DRADeviceTaints": ("tolerations",),
    "DRAAdminAccess": ("adminAccess",),
    "DRAConsumableCapacity": ("capacity",),
}
_CONSTRAINT_FIELDS: Final = {"DRAConsumableCapacity": ("distinctAttribute",)}
_RESULT_FIELDS: Final = {
    "DRAAdminAccess": ("adminAccess",),
    "DRAConsumableCapacity": ("shareID", "consumedCapacity"),
    "DRADeviceBindingConditions": ("bindingConditions", "bindingFailureConditions"),
}
_STATUS_FIELDS: Final = {"DRAResourceClaimDeviceStatus": ("devices",)}
_DEVICE_STATUS_FIELDS: Final = {"DRAConsumableCapacity": ("shareID",)}

_Parts = Iterator[tuple[Json, Mapping[str, tuple[str, ...]]]]


def drop_from_slice(spec: Json, old: Json, gates: Collection[str]) -> None:
    """Remove fields of disabled gates from a slice's spec, unless its old spec used the gate."""
    # Binding conditions also need the gate for the status that reports them.
    if "DRAResourceClaimDeviceStatus" not in gates:
        gates = set(gates) - {"DRADeviceBindingConditions"}
    _drop(_slice_parts(spec), _used(_slice_parts(old)), gates)


def drop_from_claim(spec: Json, old: Json, gates: Collection[str]) -> None:
    """Remove fields of disabled gates from a claim's spec, unless its old spec used the gate."""
    _drop(_claim_parts(spec), _used(_claim_parts(old)), gates)


def drop_from_status(status: Json, old: Json, old_spec: Json, gates: Collection[str]) -> None:
    """Remove fields of disabled gates from a claim's status.

    A gate that the old status or the spec used keeps its fields.
    """
    used = _used(_status_parts(old)) | _used(_claim_parts(old_spec))
    _drop(_status_parts(status), used, gates)


def _drop(parts: _Parts, used: Collection[str], gates: Collection[str]) -> None:
    for part, fields in parts:
        for gate, names in fields.items():
            if gate not in gates and gate not in used:
                for name in names:
                    part.pop(name, None)


def _used(parts: _Parts) -> set[str]:
    return {
        gate
        for part, fields in parts
        for gate, names in fields.items()
        if any(part.get(name) is not None for name in names)
    }


def _slice_parts(spec: Json) -> _Parts:
    yield spec, _SLICE_FIELDS
    for device in elements(spec.get("devices")):
        yield device, _DEVICE_FIELDS
        for attribute in _values(device.get("attributes")):
            yield attribute, _ATTRIBUTE_FIELDS
        for capacity in _values(device.get("capacity")):
            yield capacity, _CAPACITY_FIELDS


def _claim_parts(spec: Json) -> _Parts:
    devices = spec.get("devices")
    devices = devices if isinstance(devices, dict) else {}
    for request in elements(devices.get("requests")):
        yield request, _REQUEST_FIELDS
        exactly = request.get("exactly")
        if isinstance(exactly, dict):
            yield exactly, _EXACT_FIELDS
        for subrequest in elements(request.get("firstAvailable")):
            yield subrequest, _EXACT_FIELDS
    for constraint in elements(devices.get("constraints")):
        yield constraint, _CONSTRAINT_FIELDS


def _status_parts(status: Json) -> _Parts:
    yield status, _STATUS_FIELDS
    allocation = status.get("allocation")
    devices = allocation.get("devices") if isinstance(allocation, dict) else None
    for result in elements(devices.get("results") if isinstance(devices, dict) else None):
        yield result, _RESULT_FIELDS
    for device in elements(status.get("devices")):
        yield device, _DEVICE_STATUS_FIELDS


def _values(mapping: object) -> Iterator[Json]:
    if isinstance(mapping, dict):
        yield from (value for value in mapping.values() if isinstance(value, dict))
