"""Feature gates, and the fields that the API server silently drops while a gate is disabled.

An object that already used a gate's fields was written before the gate was disabled. It keeps them.
"""

from collections.abc import Collection, Mapping
from typing import Final

from dra_simulator.api.rules import SCHEMA
from dra_simulator.api.schema import Json

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
"""The gates that control fields and are enabled by default in Kubernetes 1.37.

Known and disabled by default: the others below.
"""

_FIELDS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "ResourceSliceSpec": {
        "DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection"),
        "DRAPartitionableDevicesType": ("partitionTypeAttribute",),
        "DRAOptionalNodeOperations": ("skipNodeOperations",),
    },
    "Device": {
        "DRADeviceTaints": ("taints",),
        "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
        "DRADeviceBindingConditions": (
            "bindingConditions",
            "bindingFailureConditions",
            "bindsToNode",
        ),
        "DRAConsumableCapacity": ("allowMultipleAllocations",),
        "DRANodeAllocatableResources": ("nodeAllocatableResources",),
    },
    "DeviceCounterConsumption": {"DRADeviceCompatibilityGroups": ("compatibilityGroups",)},
    "DeviceCapacity": {"DRAConsumableCapacity": ("requestPolicy",)},
    "DeviceAttribute": {"DRAListTypeAttributes": ("bools", "ints", "strings", "versions")},
    "DeviceRequest": {"DRAPrioritizedList": ("firstAvailable",)},
    "ExactDeviceRequest": {
        "DRADeviceTaints": ("tolerations",),
        "DRAAdminAccess": ("adminAccess",),
        "DRAConsumableCapacity": ("capacity",),
        "DRADerivedAttributes": ("derivedAttributes",),
    },
    "DeviceSubRequest": {
        "DRADeviceTaints": ("tolerations",),
        "DRAConsumableCapacity": ("capacity",),
        "DRADerivedAttributes": ("derivedAttributes",),
    },
    "DeviceConstraint": {"DRAConsumableCapacity": ("distinctAttribute",)},
    "ResourceClaimStatus": {"DRAResourceClaimDeviceStatus": ("devices",)},
    "DeviceRequestAllocationResult": {
        "DRAAdminAccess": ("adminAccess",),
        "DRAConsumableCapacity": ("shareID", "consumedCapacity"),
        "DRADeviceBindingConditions": ("bindingConditions", "bindingFailureConditions"),
        "DRAOptionalNodeOperations": ("skipNodeOperations",),
    },
    "AllocatedDeviceStatus": {"DRAConsumableCapacity": ("shareID",)},
    "DeviceClassSpec": {"DRAExtendedResource": ("extendedResourceName",)},
}
"""Fields of each struct by the gate that controls them."""


def drop(struct: str, document: Json, old: Mapping[str, Json], gates: Collection[str]) -> None:
    """Remove the fields of disabled gates from an object.

    Args:
        old: Objects before the change by their structs; a gate that they used keeps its fields.
    """
    # Binding conditions of devices also need the gate for the status that reports them.
    if struct == "ResourceSliceSpec" and "DRAResourceClaimDeviceStatus" not in gates:
        gates = set(gates) - {"DRADeviceBindingConditions"}
    kept = {*gates, *(gate for name, before in old.items() for gate in _used(name, before))}
    for inner, _, found in SCHEMA.walk(struct, document, ""):
        for gate, names in _FIELDS.get(inner, {}).items():
            if gate not in kept:
                for name in names:
                    found.pop(name, None)


def _used(struct: str, document: Json) -> set[str]:
    return {
        gate
        for inner, _, found in SCHEMA.walk(struct, document, "")
        for gate, names in _FIELDS.get(inner, {}).items()
        if any(found.get(name) is not None for name in names)
    }
