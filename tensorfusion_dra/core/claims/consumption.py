"""Amounts that a share consumes of each capacity of its device."""

from collections.abc import Mapping

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import Allocation, ClaimRef
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity


def consumed(ref: ClaimRef, allocation: Allocation, device: Device) -> Mapping[str, Quantity]:
    """Return what the share consumes of every capacity of the device.

    An allocation without a share ID is exclusive and consumes the whole device: an API server with
    DRAConsumableCapacity off allocates in this way, whatever the driver publishes.
    """
    subject = f"claim {ref}: {device.name}"
    if allocation.share_id is None:
        if allocation.consumed:
            raise ClaimError(f"{subject}: found consumed capacity without a share ID")
        return {name: entry.value for name, entry in device.capacity.items()}
    taken: dict[str, Quantity] = {}
    for name, entry in device.capacity.items():
        if is_provided(name):
            # None if the claim was allocated before the capacity was published.
            taken[name] = allocation.consumed.get(name, capacity.NONE)
            continue
        if name not in allocation.consumed and name not in capacity.VIRTUAL:
            raise ClaimError(f"{subject}: {name}: found no consumed capacity, expected one")
        # The amount may be from before the pool started or stopped oversubscribing, and so named
        # differently from the capacity that it counts against today.
        amount = capacity.counted_amount(allocation.consumed, name, device.capacity)
        if capacity.is_outgrown(allocation.consumed, name, device.capacity) or _is_reserve(
            name, amount, device
        ):
            amount = min(amount, entry.value)
        # An amount below the minimum could become a limit of 0, which a limiter takes for no limit.
        if amount < entry.minimum:
            raise ClaimError(
                f"{subject}: {name}: found {amount}, expected at least {entry.minimum}"
            )
        taken[name] = amount
    return taken


def is_provided(name: str) -> bool:
    """Return True for a capacity that a provider of another package gives.

    Such an amount becomes no limit. The scheduler adds it up, and so does this check.
    """
    return name not in names.CAPACITIES


def _is_reserve(name: str, amount: Quantity, device: Device) -> bool:
    """Return True if an amount of memory exceeds the device by no more than the reserved part.

    Such an amount was allocated from a slice of an earlier release, which published the memory
    that the NVIDIA driver reserves as well.
    """
    if name not in (names.CAPACITY_VRAM, names.CAPACITY_VIRTUAL_VRAM):
        return False
    reserved = -(-device.gpu.reserved_bytes // MIB) * MIB
    return 0 < amount.nano - device.capacity[name].value.nano <= reserved * NANO
