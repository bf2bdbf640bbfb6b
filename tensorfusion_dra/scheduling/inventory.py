"""The cards of a cluster with what is free of each, from slices and claims."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import devices, usage
from tensorfusion_dra.scheduling.devices import Device, DeviceId
from tensorfusion_dra.scheduling.usage import Holder

_NONE = Quantity(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """One capacity of a card, of which tenants have taken a part."""

    total: Quantity
    taken: Quantity

    @property
    def free(self) -> Quantity:
        """What is left; 0 if more is taken than the card has now."""
        return max(self.total - self.taken, Quantity(0, self.total.family))


@dataclass(frozen=True, slots=True, kw_only=True)
class StockedCard:
    """A card with its tenants.

    Attributes:
        node: "" for a device that is not of one node, or not published any more.
        is_published: False if no slice lists the device any more, although claims hold it.
        amounts: By the published name of the capacity.
    """

    node: str
    device: Device
    is_published: bool
    amounts: Mapping[str, Amount]
    holders: tuple[Holder, ...]

    @property
    def is_tainted(self) -> bool:
        """Return True if a taint keeps new claims away."""
        return any(taint.effect in {"NoSchedule", "NoExecute"} for taint in self.device.taints)


def cards(
    slices: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]], *, driver: str
) -> list[StockedCard]:
    """Return the driver's cards, sorted by node and name; those that are gone are last."""
    allocated = list(claims)
    parsed = [devices.slice_of(each) for each in slices if each["spec"]["driver"] == driver]
    node_of = {device.id: item.node_name for item in parsed for device in item.devices}
    used, held = usage.of_claims(allocated), usage.holders(allocated)
    found = []
    for device in devices.newest(parsed):
        tenants = tuple(held.pop(device.id, ()))
        taken = used.taken(device.id)
        is_whole = used.is_exclusive(device.id)
        amounts = {
            name: Amount(
                total=entry.value,
                taken=entry.value if is_whole else taken.get(name, _NONE),
            )
            for name, entry in device.capacity.items()
        }
        found.append(
            StockedCard(
                node=node_of[device.id],
                device=device,
                is_published=True,
                amounts=amounts,
                holders=tenants,
            )
        )
    found.sort(key=lambda card: (card.node, card.device.id))
    return found + [
        _gone(device, tenants)
        for device, tenants in sorted(held.items())
        if device.driver == driver
    ]


def totals(found: Iterable[StockedCard]) -> dict[str, Amount]:
    """Return the sums over all cards that may be allocated, by capacity."""
    sums: dict[str, Amount] = {}
    for card in found:
        for name, amount in card.amounts.items() if not card.is_tainted else ():
            before = sums.get(name)
            if before is None:
                total, free = amount.total, amount.free
            else:
                total, free = before.total + amount.total, before.free + amount.free
            sums[name] = Amount(total=total, taken=total - free)
    return sums


def _gone(device: DeviceId, tenants: Iterable[Holder]) -> StockedCard:
    return StockedCard(
        node="",
        device=Device(id=device),
        is_published=False,
        amounts={},
        holders=tuple(tenants),
    )
