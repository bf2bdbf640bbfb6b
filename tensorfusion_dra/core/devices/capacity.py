"""Capacities of a card, and what a claim consumes of them if it does not name them.

Without oversubscription a device has the capacities `tflops` and `vram`. Both default to the whole
card, so a claim that names neither gets the card exclusively.

With oversubscription tenants divide `virtual_tflops` and `virtual_vram` instead, and these default
to the whole. The physical capacities default to 0. Example: an A100 with `tflops-oversell-ratio`
150 has `tflops: 312` and `virtual_tflops: 468`. A claim for `virtual_tflops: 156` consumes no
`tflops`. A claim for `tflops: 100` consumes all 468 `virtual_tflops`, so it gets the card
exclusively.

A pool may start or stop oversubscribing while claims exist. The scheduler adds up each capacity by
itself, so a card that changed at once would look empty to it. Therefore a card keeps the kind of
amounts that its shares have until the last one ends; after its pool stopped oversubscribing, the
virtual amounts are what the card has. A claim that was allocated before a change may still be
prepared after it. Then counted_amount() compares its amounts with today's capacities: physical
amounts count as virtual ones, or virtual as physical.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversubscription:
    """A pool's ratios, in percent as in the GPUPool.

    Attributes:
        tflops_percent: Virtual compute in relation to physical; 500 hands out five times the card.
        host_memory_percent: Part of the host's memory that extends the cards' memory.
        host_disk_percent: Part of the host's data disk that extends the cards' memory.
    """

    tflops_percent: int
    host_memory_percent: int
    host_disk_percent: int

    @property
    def expands_memory(self) -> bool:
        """True if the host's memory or disk extends the cards' memory."""
        return self.host_memory_percent > 0 or self.host_disk_percent > 0


NO_MORE: Final = Oversubscription(tflops_percent=100, host_memory_percent=0, host_disk_percent=0)
"""Ratios that hand out the cards and nothing beyond them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtual:
    """The virtual totals of one card."""

    tflops: Quantity
    vram_bytes: int


def usable_vram_bytes(gpu: Gpu) -> int:
    """Return the memory that containers can allocate, in whole MiB, the step of its shares."""
    return (gpu.vram_bytes - gpu.reserved_bytes) // MIB * MIB


def virtual_totals(
    gpus: Iterable[Gpu], ratios: Oversubscription, host: HostResources
) -> Mapping[str, Virtual]:
    """Return the virtual totals by GPU UUID; a partition's are its own amounts.

    The cards divide host memory and disk in proportion to their own memory, rounded down to whole
    MiB, so that the parts never add up to more than the whole. Compute is rounded down to
    thousandths of a TFLOPS, because Kubernetes refuses a slice with a finer default where the
    feature gate DRAFractionalCapacityRange is on.
    """
    cards = tuple(gpus)
    own = {gpu.uuid: usable_vram_bytes(gpu) for gpu in cards}
    total = sum(own[gpu.uuid] for gpu in cards if not gpu.partition)
    extra = (
        host.memory_bytes * ratios.host_memory_percent // 100
        + host.disk_bytes * ratios.host_disk_percent // 100
    )
    return {
        gpu.uuid: Virtual(
            tflops=Quantity.milli(gpu.milli_tflops * ratios.tflops_percent // 100),
            vram_bytes=own[gpu.uuid] + extra * own[gpu.uuid] // total // MIB * MIB,
        )
        if not gpu.partition
        else Virtual(tflops=Quantity.milli(gpu.milli_tflops), vram_bytes=own[gpu.uuid])
        for gpu in cards
    }


VIRTUAL_OF: Final = {
    names.CAPACITY_TFLOPS: names.CAPACITY_VIRTUAL_TFLOPS,
    names.CAPACITY_VRAM: names.CAPACITY_VIRTUAL_VRAM,
}
"""The virtual capacity of each physical one."""
VIRTUAL: Final = frozenset(VIRTUAL_OF.values())

_PHYSICAL_OF: Final = {virtual: physical for physical, virtual in VIRTUAL_OF.items()}
_MEMORY: Final = frozenset({names.CAPACITY_VRAM, names.CAPACITY_VIRTUAL_VRAM})
NONE: Final = Quantity.whole(0)
_MIB: Final = Quantity.of_bytes(MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One consumable capacity of a device (KEP-5075).

    Attributes:
        value: Amount that all shares together may consume.
        default: Amount that a claim consumes if it does not name this capacity. For a capacity
            that tenants divide it is the whole value, so no mix of claims can over-commit the card.
        minimum: The smallest share. It is always published: without it a negative request would
            lower the sum and so take from other tenants (Kubernetes up to 1.36).
        step: A share is rounded up to the minimum plus a whole number of steps; None means no
            rounding, which keeps fractions such as 71200m.
        maximum: The largest share; None if a share may be the whole value.
    """

    value: Quantity
    default: Quantity
    minimum: Quantity
    step: Quantity | None = None
    maximum: Quantity | None = None

    def as_api(self) -> dict[str, object]:
        """Return the DeviceCapacity of resource.k8s.io/v1."""
        valid_range = {"min": str(self.minimum)}
        if self.maximum is not None:
            valid_range["max"] = str(self.maximum)
        if self.step is not None:
            valid_range["step"] = str(self.step)
        return {
            "value": str(self.value),
            "requestPolicy": {"default": str(self.default), "validRange": valid_range},
        }


def of_card(gpu: Gpu, virtual: Virtual | None) -> Mapping[str, Capacity]:
    """Return the capacities of a card.

    Args:
        virtual: The card's virtual totals; None if its pool does not oversubscribe.
    """
    own = Virtual(tflops=Quantity.milli(gpu.milli_tflops), vram_bytes=usable_vram_bytes(gpu))
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


def consumable(
    value: str | int,
    *,
    default: str | int = 0,
    minimum: str | int = 0,
    maximum: str | int | None = None,
    step: str | int | None = None,
) -> Capacity:
    """Return a capacity from Kubernetes quantities, for providers: ``consumable("40Gi")``.

    Args:
        value: Amount that all shares together may consume.
        default: Amount that a claim consumes if it does not name this capacity. Without a default
            Kubernetes would count the whole value, and no two claims could share the card.
        minimum: The smallest share that a claim may request.
        maximum: The largest one; None for the whole value.
        step: A share is rounded up to the minimum plus a whole number of steps.

    Raises:
        QuantityError: A text is not a quantity.
    """
    return Capacity(
        value=quantity.parse(value),
        default=quantity.parse(default),
        minimum=quantity.parse(minimum),
        step=None if step is None else quantity.parse(step),
        maximum=None if maximum is None else quantity.parse(maximum),
    )


def rounded_up(name: str, amount: Quantity, *, unit_bytes: int = 1) -> Quantity:
    """Return an amount of a capacity in thousandths of a TFLOPS or, of memory, in whole bytes.

    With the feature gate DRAFractionalCapacityRange, Kubernetes computes with capacities that have
    steps in thousandths, and schedules no pod whose claim requests a finer fraction. The gate is on
    where --min-compatibility-version is 1.37. Rounding every amount in this one way keeps a limit
    from falling below its request.

    Args:
        name: The capacity.
        unit_bytes: Unit of memory; MIB for what a share of this amount consumes.
    """
    unit = unit_bytes * NANO if name in _MEMORY else NANO // 1000
    return Quantity(-(-amount.nano // unit) * unit, amount.family)


def is_virtual(consumed: Mapping[str, Quantity]) -> bool:
    """Return True if a share consumes virtual amounts."""
    return not VIRTUAL.isdisjoint(consumed)


def consumed_amount(consumed: Mapping[str, Quantity], physical: str) -> Quantity:
    """Return a share's virtual amount, which tenants divide; else its physical amount.

    Args:
        consumed: Amounts by capacity.
        physical: CAPACITY_TFLOPS or CAPACITY_VRAM.
    """
    return consumed.get(VIRTUAL_OF[physical], consumed[physical])


def counted_amount(
    consumed: Mapping[str, Quantity], name: str, device: Mapping[str, Capacity]
) -> Quantity:
    """Return what a share counts against a capacity of its device, even if the pool changed since.

    A share from before its pool started oversubscribing counts its physical amounts as virtual
    ones. A share from before its pool stopped oversubscribing counts its virtual amounts as
    physical ones.
    """
    if name not in names.CAPACITIES:
        # Of another package: the share may be from before this capacity was published.
        return consumed.get(name, NONE)
    physical = _PHYSICAL_OF.get(name)
    if physical is not None:
        return consumed.get(name, consumed[physical])
    if _is_outgrown(consumed, name, device):
        return max(consumed[name], consumed[VIRTUAL_OF[name]])
    return consumed[name]


def in_use(
    shares: Sequence[Mapping[str, Quantity]], device: Mapping[str, Capacity]
) -> Mapping[str, int]:
    """Return the nano-units in use of each of a device's capacities.

    Args:
        shares: What each of its shares consumes.
        device: Its capacities.
    """
    return {
        name: sum(counted_amount(each, name, device).nano for each in shares) for name in device
    }


def taken_amount(
    consumed: Mapping[str, Quantity], name: str, device: Mapping[str, Capacity]
) -> Quantity:
    """Return what a new share takes of a capacity of its device, even if the pool changed since.

    It is what counts, capped at what the card has if the pool stopped oversubscribing.
    """
    amount = counted_amount(consumed, name, device)
    return min(amount, device[name].value) if _is_outgrown(consumed, name, device) else amount


def _is_outgrown(
    consumed: Mapping[str, Quantity], name: str, device: Mapping[str, Capacity]
) -> bool:
    """Return True if a share has a virtual amount of a capacity that its device no longer has."""
    virtual = VIRTUAL_OF.get(name)
    return virtual is not None and virtual in consumed and virtual not in device


def divided_capacity(device: Mapping[str, Capacity], physical: str) -> Capacity:
    """Return the capacity that tenants divide: the virtual one if the device has it."""
    return device.get(VIRTUAL_OF[physical], device[physical])


def _shared(total: Quantity, *, step: Quantity | None = None) -> Capacity:
    """Return a capacity that tenants divide; a claim that does not name it consumes all of it."""
    return Capacity(value=total, default=total, minimum=step or NONE, step=step)


def _beside(total: Quantity) -> Capacity:
    """Return a physical capacity of a card that is shared by its virtual capacity.

    It defaults to 0, so ordinary shares consume none of it. A claim that names it leaves the
    virtual capacity at its default, the whole card, and therefore gets the card exclusively.
    """
    return Capacity(value=total, default=NONE, minimum=NONE)
