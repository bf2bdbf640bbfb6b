"""Use of devices by claims: exclusively, or by shares; the pods that use them are their tenants."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling.consumable_capacity import Amounts
from tensorfusion_dra.scheduling.devices import DeviceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One share of a device, or a device that a claim has exclusively.

    Attributes:
        claim: Name of the claim.
        request: Name of the request in the claim.
        consumers: Names of the pods that the claim is reserved for; empty if nothing uses it.
        amounts: Consumed amount of each capacity; None if the claim has the device exclusively.
        is_admin: The claim only observes the device (adminAccess), and takes nothing of it.
    """

    namespace: str
    claim: str
    request: str
    consumers: tuple[str, ...]
    amounts: Mapping[str, Quantity] | None
    is_admin: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the claim."""
        return self.namespace, self.claim

    @property
    def text(self) -> str:
        """Names of its pods with their namespace, or of the claim if no pod uses it."""
        if self.consumers:
            return ", ".join(f"{self.namespace}/{name}" for name in self.consumers)
        return f"claim {self.namespace}/{self.claim} (used by no pod)"


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

    def add(self, device: DeviceId, holder: Holder) -> None:
        """Add what a claim has of the device."""
        if holder.amounts is not None:
            self.take(device, {} if holder.is_admin else holder.amounts)
        elif not holder.is_admin:
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
    for device, tenants in holders(claims).items():
        for holder in tenants:
            usage.add(device, holder)
    return usage


def holders(claims: Iterable[Mapping[str, Any]]) -> dict[DeviceId, list[Holder]]:
    """Return the holders of each device, in the order of the claims."""
    found: dict[DeviceId, list[Holder]] = {}
    for claim in claims:
        metadata, status = claim["metadata"], claim.get("status") or {}
        consumers = tuple(str(entry["name"]) for entry in status.get("reservedFor") or ())
        allocated = (status.get("allocation") or {}).get("devices") or {}
        for result in allocated.get("results") or ():
            device = DeviceId(result["driver"], result["pool"], result["device"])
            amounts = result.get("consumedCapacity") or {}
            holder = Holder(
                namespace=str(metadata.get("namespace", "")),
                claim=str(metadata["name"]),
                request=str(result.get("request", "")),
                consumers=consumers,
                amounts={name: quantity.parse(text) for name, text in amounts.items()}
                if result.get("shareID")
                else None,
                is_admin=bool(result.get("adminAccess")),
            )
            found.setdefault(device, []).append(holder)
    return found
