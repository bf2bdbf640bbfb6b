"""Allocated devices: those that one claim has exclusively, and shares of shared ones."""

from collections.abc import Iterable, Mapping
from typing import Any

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling.consumable_capacity import Amounts
from tensorfusion_dra.scheduling.devices import DeviceId


class Usage:
    """Devices in use. A search adds the devices that it tries, and removes them to go back."""

    def __init__(self) -> None:
        self._exclusive: set[DeviceId] = set()
        self._taken: dict[DeviceId, dict[str, Quantity]] = {}

    def is_exclusive(self, device: DeviceId) -> bool:
        """Return True if a claim has the device exclusively."""
        return device in self._exclusive

    def taken(self, device: DeviceId) -> Amounts:
        """Return the sum of all shares of the device, by capacity."""
        return self._taken.get(device, {})

    def take_exclusive(self, device: DeviceId) -> None:
        """Mark the device as allocated exclusively."""
        self._exclusive.add(device)

    def take(self, device: DeviceId, amounts: Amounts) -> None:
        """Add a share of the device."""
        sums = self._taken.setdefault(device, {})
        for name, amount in amounts.items():
            sums[name] = sums[name] + amount if name in sums else amount

    def give_back(self, device: DeviceId, amounts: Amounts) -> None:
        """Remove a share that was added."""
        self.take(device, {name: Quantity(-amount.nano) for name, amount in amounts.items()})


def of_claims(claims: Iterable[Mapping[str, Any]]) -> Usage:
    """Return the usage of a cluster's claims; devices with admin access do not count.

    pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go.
    """
    usage = Usage()
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            if result.get("adminAccess"):
                continue
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if not result.get("shareID"):
                usage.take_exclusive(device)
                continue
            amounts = result.get("consumedCapacity") or {}
            usage.take(device, {name: quantity.parse(text) for name, text in amounts.items()})
    return usage
