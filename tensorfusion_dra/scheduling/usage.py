"""Use of devices by claims: exclusively, or by shares of consumable capacity (KEP-5075).

dynamic-resource-allocation/structured/internal/incubating/consumable_capacity.go, release 1.37.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorfusion_dra.core.kubernetes import quantity, resource_claims
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling.devices import Capacity, DeviceId, Policy

Amounts = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One share of a device, or a device that a claim has exclusively.

    Attributes:
        claim: Name of the claim.
        request: Name of the request in the claim.
        consumers: Names of the pods that the claim is reserved for, and of others with their kind,
            such as podgroups/train; empty if nothing uses it.
        amounts: Consumed amount of each capacity; None if the claim has the device exclusively.
        used: What its processes use, as the claim's status has it; {} if it does not say it.
        is_admin: The claim only observes the device (adminAccess), and takes nothing of it.
    """

    namespace: str
    claim: str
    request: str
    consumers: tuple[str, ...]
    amounts: Mapping[str, Quantity] | None
    is_admin: bool = False
    used: Mapping[str, Any] = field(default_factory=dict)

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
        consumers = tuple(
            entry["name"]
            if entry.get("resource") in {None, "pods"}
            else f"{entry['resource']}/{entry['name']}"
            for entry in status.get("reservedFor") or ()
        )
        used = {
            (each["driver"], each["pool"], each["device"], each.get("shareID")): (
                each.get("data") or {}
            ).get("used")
            for each in status.get("devices") or ()
        }
        for result in resource_claims.results(claim):
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
                used=used.get((*device, result.get("shareID"))) or {},
            )
            found.setdefault(device, []).append(holder)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The first capacity of a device that cannot provide its requested amount.

    Attributes:
        capacity: Its name; of several that the device lacks, the first.
        text: What was found and what was requested.
        is_allowed: False if the device has no such capacity or its requestPolicy excludes the
            amount, whatever is free.
    """

    capacity: str
    text: str
    is_allowed: bool


def consumed(requested: Amounts, capacity: Mapping[str, Capacity]) -> dict[str, Quantity]:
    """Return the amount that a request consumes of every capacity of a device.

    It consumes the default of a capacity that it does not name, or all of it without a default.
    """
    return {name: _consumed(requested.get(name), entry) for name, entry in capacity.items()}


def refusal(requested: Amounts, capacity: Mapping[str, Capacity], taken: Amounts) -> str | None:
    """Return why a request does not fit next to the amounts taken; None if it fits."""
    found = shortage(requested, capacity, taken)
    return None if found is None else found.text


def shortage(
    requested: Amounts, capacity: Mapping[str, Capacity], taken: Amounts
) -> Shortage | None:
    """Return the first capacity for which a request does not fit next to the amounts taken."""
    unknown = sorted(requested.keys() - capacity.keys())
    if unknown:
        text = f"has no capacity {', '.join(unknown)}"
        return Shortage(capacity=unknown[0], text=text, is_allowed=False)
    for name, amount in consumed(requested, capacity).items():
        entry = capacity[name]
        if _violates(amount, entry.policy):
            text = f"{name} {amount} is not allowed by its requestPolicy"
            return Shortage(capacity=name, text=text, is_allowed=False)
        before = taken.get(name, Quantity(0))
        if before + amount > entry.value:
            text = f"{name} {before} of {entry.value} taken, {amount} more do not fit"
            return Shortage(capacity=name, text=text, is_allowed=True)
    return None


def _consumed(requested: Quantity | None, capacity: Capacity) -> Quantity:
    policy = capacity.policy
    if requested is None:
        default = None if policy is None else policy.default
        return capacity.value if default is None else default
    if policy is None:
        return requested
    if policy.least is None:
        return next((value for value in policy.valid_values or () if requested <= value), requested)
    if requested < policy.least or policy.step is None:
        return max(requested, policy.least)
    # A whole number of steps above the minimum. Quantity.Value() rounds fractions up to whole
    # numbers, also those of least and step.
    least, step = policy.least.ceil(), policy.step.ceil()
    return Quantity.of_bytes(least + -(-(requested.ceil() - least) // step) * step)


def _violates(amount: Quantity, policy: Policy | None) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.least is not None:
        if policy.most is not None and amount > policy.most:
            return True
        step = policy.step
        return step is not None and (amount.ceil() - policy.least.ceil()) % step.ceil() != 0
    return policy.valid_values is not None and amount not in policy.valid_values
