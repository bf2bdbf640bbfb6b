"""Tenants of devices: the claims that hold a part of each device, and the pods that use them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
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


def of_claims(claims: Iterable[Mapping[str, Any]]) -> dict[DeviceId, list[Holder]]:
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
                request=str(result["request"]),
                consumers=consumers,
                amounts={name: quantity.parse(text) for name, text in amounts.items()}
                if result.get("shareID")
                else None,
                is_admin=bool(result.get("adminAccess")),
            )
            found.setdefault(device, []).append(holder)
    return found
