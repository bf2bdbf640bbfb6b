"""Capacities of a card that providers of other packages give, and what its shares take of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.prepared import PreparedShare
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCapacity:
    """One capacity of a card.

    Attributes:
        name: As in the slice, such as example.com/encoder_sessions.
        quantity: What all shares together may consume.
        consumed: What the prepared shares consume of it.
    """

    name: str
    quantity: Quantity
    consumed: Quantity


def of_card(device: Device, held: Iterable[PreparedShare]) -> tuple[OtherCapacity, ...]:
    """Return the capacities in the order of their names.

    Args:
        device: As it is published.
        held: All shares of the card.
    """
    shares = tuple(held)
    found = []
    for name in sorted(device.capacity.keys() - names.CAPACITIES):
        total = device.capacity[name].value
        consumed = Quantity(0, total.family)
        for share in shares:
            consumed += capacity.counted_amount(share.consumed, name, device.capacity)
        found.append(OtherCapacity(name=name, quantity=total, consumed=consumed))
    return tuple(found)
