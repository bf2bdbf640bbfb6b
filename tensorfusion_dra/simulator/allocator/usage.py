"""What is allocated already: devices that one claim has alone, and shares of the others."""

from collections.abc import Iterable, Mapping
from typing import Any

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.simulator.allocator.consumable import Amounts
from tensorfusion_dra.simulator.allocator.devices import DeviceId


class Usage:
    """Devices in use; a search adds what it tries and takes it back."""

    def __init__(self) -> None:
        self._alone: set[DeviceId] = set()
        self._taken: dict[DeviceId, dict[str, Quantity]] = {}

    def is_alone(self, device: DeviceId) -> bool:
        """Whether a claim has the device for itself."""
        return device in self._alone

    def taken(self, device: DeviceId) -> Amounts:
        """The sum of all shares of the device, by capacity."""
        return self._taken.get(device, {})

    def take_alone(self, device: DeviceId) -> None:
        """The device has an owner."""
        self._alone.add(device)

    def give_back_alone(self, device: DeviceId) -> None:
        """The device has no owner any more."""
        self._alone.discard(device)

    def take(self, device: DeviceId, amounts: Amounts) -> None:
        """A share is added."""
        sums = self._taken.setdefault(device, {})
        for name, amount in amounts.items():
            sums[name] = sums.get(name, Quantity(0)) + amount

    def give_back(self, device: DeviceId, amounts: Amounts) -> None:
        """A share that was added is taken away."""
        self.take(device, {name: Quantity(-amount.nano) for name, amount in amounts.items()})


def of_claims(claims: Iterable[Mapping[str, Any]]) -> Usage:
    """What the claims of a cluster use; devices given for administration do not count.

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
                usage.take_alone(device)
                continue
            amounts = result.get("consumedCapacity") or {}
            usage.take(device, {name: quantity.parse(text) for name, text in amounts.items()})
    return usage
