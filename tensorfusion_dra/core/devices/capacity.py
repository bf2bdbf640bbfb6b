"""How much of a card there is to share, and what a claim that names nothing takes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import oversubscription
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.devices.oversubscription import Virtual
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity

_VIRTUAL_OF: Final = {
    names.CAPACITY_TFLOPS: names.CAPACITY_VIRTUAL_TFLOPS,
    names.CAPACITY_VRAM: names.CAPACITY_VIRTUAL_VRAM,
}
VIRTUAL: Final = frozenset(_VIRTUAL_OF.values())

_PHYSICAL_OF: Final = {virtual: physical for physical, virtual in _VIRTUAL_OF.items()}
_NONE: Final = Quantity.whole(0)
_MIB: Final = Quantity.of_bytes(MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One consumable capacity of a device (KEP-5075).

    Attributes:
        value: What all shares together may consume.
        default: What a claim consumes that does not name this capacity. It is the whole value of
            what is shared, so that no mix of claims can over-commit the card.
        minimum: The smallest share. It is never left out: without it a negative request would
            lower the sum and so take from other tenants (Kubernetes up to 1.36).
        step: A share is rounded up to the minimum and a whole number of steps; None means no
            rounding, which keeps fractions such as 71200m.
    """

    value: Quantity
    default: Quantity
    minimum: Quantity
    step: Quantity | None = None

    def as_api(self) -> dict[str, object]:
        """The DeviceCapacity of resource.k8s.io/v1."""
        valid_range = {"min": str(self.minimum)}
        if self.step is not None:
            valid_range["step"] = str(self.step)
        return {
            "value": str(self.value),
            "requestPolicy": {"default": str(self.default), "validRange": valid_range},
        }


def of_card(gpu: Gpu, virtual: Virtual | None) -> Mapping[str, Capacity]:
    """The capacities of a card.

    Args:
        virtual: What its pool hands out beyond the card; None if it hands out the card itself.
    """
    own = Virtual(
        tflops=Quantity.milli(gpu.milli_tflops), vram_bytes=oversubscription.usable_vram_bytes(gpu)
    )
    if virtual is None:
        return {
            names.CAPACITY_TFLOPS: _shared(own.tflops),
            names.CAPACITY_VRAM: _shared(Quantity.of_bytes(own.vram_bytes), step=_MIB),
        }
    return {
        names.CAPACITY_TFLOPS: _beside(own.tflops),
        names.CAPACITY_VRAM: _beside(Quantity.of_bytes(own.vram_bytes)),
        names.CAPACITY_VIRTUAL_TFLOPS: _shared(virtual.tflops),
        names.CAPACITY_VIRTUAL_VRAM: _shared(Quantity.of_bytes(virtual.vram_bytes), step=_MIB),
    }


def taken(consumed: Mapping[str, Quantity], physical: str) -> Quantity:
    """What a share takes of what tenants divide: the virtual amount where its pool has one.

    Args:
        consumed: Amounts by capacity.
        physical: CAPACITY_TFLOPS or CAPACITY_VRAM.
    """
    return consumed.get(_VIRTUAL_OF[physical], consumed[physical])


def counted(
    consumed: Mapping[str, Quantity], name: str, device: Mapping[str, Capacity]
) -> Quantity:
    """What a share counts against a capacity of its device, also if the pool changed since.

    A share from before its pool oversubscribed counts its physical amounts as virtual ones; one
    from before the pool ceased to, its virtual amounts as physical ones.
    """
    physical = _PHYSICAL_OF.get(name)
    if physical is not None:
        return consumed.get(name, consumed[physical])
    if is_outgrown(consumed, name, device):
        return max(consumed[name], consumed[_VIRTUAL_OF[name]])
    return consumed[name]


def is_outgrown(
    consumed: Mapping[str, Quantity], name: str, device: Mapping[str, Capacity]
) -> bool:
    """Whether a share was allocated from more than the device has in this capacity today.

    That is a virtual amount whose pool ceased to oversubscribe. Such a share gets what it was
    promised as far as the card has it.
    """
    virtual = _VIRTUAL_OF.get(name)
    return virtual is not None and virtual in consumed and virtual not in device


def in_force(device: Mapping[str, Capacity], physical: str) -> Capacity:
    """The capacity that tenants divide: the virtual one where the pool has one."""
    return device.get(_VIRTUAL_OF[physical], device[physical])


def _shared(total: Quantity, *, step: Quantity | None = None) -> Capacity:
    """What tenants divide among themselves; who does not name it takes it whole."""
    return Capacity(value=total, default=total, minimum=step or _NONE, step=step)


def _beside(total: Quantity) -> Capacity:
    """The physical amount of a card that is shared by its virtual one.

    Who shares does not name it and takes none of it. Who names it does not name the virtual
    amount, takes that whole, and so has the card alone.
    """
    return Capacity(value=total, default=_NONE, minimum=_NONE)
