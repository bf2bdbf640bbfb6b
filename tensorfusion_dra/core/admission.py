"""The last check before a device is handed out: does this claim's share fit beside the others?

The scheduler decides first. But two claims can reach a node with the same share (a force-deleted
pod, an older scheduler, a hand-written status), and here is the last place to notice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorfusion_dra.core import limits
from tensorfusion_dra.core.claim import AllocatedClaim, Allocation, ClaimRef
from tensorfusion_dra.core.device import Device
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShare:
    """A share of a device that a claim already holds."""

    claim: ClaimRef
    share: PreparedShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What this node can give.

    Attributes:
        pool: The node's resource pool.
        devices: By name.
        device_nodes: Existing paths by device name; none for a simulated card.
        common_nodes: Existing paths that every container with a card needs.
    """

    pool: str
    devices: Mapping[str, Device]
    device_nodes: Mapping[str, tuple[str, ...]]
    common_nodes: tuple[str, ...]


def admit(claim: AllocatedClaim, local: Local, held: Iterable[HeldShare]) -> PreparedClaim:
    """The record of a claim that fits.

    Args:
        claim: What the scheduler gave.
        local: What this node can give.
        held: Shares that other claims hold on the claim's devices.

    Raises:
        ClaimError: A device is not this node's, an amount is missing or too small, or the shares
            of a device would exceed it. Nothing of the claim is admitted then.
    """
    others = [share for share in held if share.claim.uid != claim.ref.uid]
    shares: list[PreparedShare] = []
    for allocation in claim.allocations:
        device = _local_device(claim.ref, allocation, local)
        share = _share(claim.ref, allocation, device, local.device_nodes.get(device.name, ()))
        on_device = [
            *(other for other in others if other.share.device == device.name),
            *(HeldShare(claim=claim.ref, share=own) for own in shares if own.device == device.name),
        ]
        _check_fits(claim.ref, share, device, on_device)
        shares.append(share)
    nodes = local.common_nodes if any(share.device_nodes for share in shares) else ()
    return PreparedClaim(ref=claim.ref, shares=tuple(shares), common_nodes=nodes)


def _local_device(ref: ClaimRef, allocation: Allocation, local: Local) -> Device:
    if allocation.pool != local.pool:
        raise ClaimError(
            f"claim {ref}: allocated from pool {allocation.pool}, this node's is {local.pool}"
        )
    device = local.devices.get(allocation.device)
    if device is None:
        known = ", ".join(sorted(local.devices)) or "none"
        raise ClaimError(f"claim {ref}: device {allocation.device} unknown, this node has {known}")
    return device


def _share(
    ref: ClaimRef, allocation: Allocation, device: Device, device_nodes: tuple[str, ...]
) -> PreparedShare:
    exclusive = allocation.share_id is None and not allocation.admin_access
    consumed: Mapping[str, Quantity] = {}
    if not allocation.admin_access:
        consumed = _consumed(ref, allocation, device)
    return PreparedShare(
        request=allocation.request,
        pool=allocation.pool,
        device=device.name,
        gpu_uuid=device.gpu.uuid,
        share_id=allocation.share_id,
        consumed=consumed,
        exclusive=exclusive,
        admin_access=allocation.admin_access,
        device_nodes=device_nodes,
        limit=None if allocation.admin_access else limits.of_consumed(device.gpu, consumed),
    )


def _consumed(ref: ClaimRef, allocation: Allocation, device: Device) -> Mapping[str, Quantity]:
    """What the share takes of every capacity of the device.

    Without a share ID the device is given alone, and so is all of it: an API server with
    DRAConsumableCapacity off allocates like that, whatever we publish.
    """
    subject = f"claim {ref}: {device.name}"
    if allocation.share_id is None:
        if allocation.consumed:
            raise ClaimError(f"{subject}: found consumed capacity without a share ID")
        return {name: entry.value for name, entry in device.capacity.items()}
    for name, entry in device.capacity.items():
        amount = allocation.consumed.get(name)
        if amount is None:
            raise ClaimError(f"{subject}: {name}: found no consumed capacity, expected one")
        # Less than the minimum could become a limit of 0, which a limiter takes for none.
        if amount < entry.minimum:
            raise ClaimError(
                f"{subject}: {name}: found {amount}, expected at least {entry.minimum}"
            )
    return {name: allocation.consumed[name] for name in device.capacity}


def _check_fits(
    ref: ClaimRef, share: PreparedShare, device: Device, held: Sequence[HeldShare]
) -> None:
    if share.admin_access:
        return
    consuming = [other for other in held if not other.share.admin_access]
    for other in consuming:
        if share.exclusive or other.share.exclusive:
            raise ClaimError(f"claim {ref}: {device.name} is given alone, but {other.claim} has it")
        if share.share_id == other.share.share_id:
            raise ClaimError(
                f"claim {ref}: {device.name}: share {share.share_id} is held by {other.claim}"
            )
    for name, entry in device.capacity.items():
        taken = sum((other.share.consumed[name].nano for other in consuming), start=0)
        total = taken + share.consumed[name].nano
        if total > entry.value.nano:
            raise ClaimError(
                f"claim {ref}: {device.name}: {name}: {share.consumed[name]} beside "
                f"{Quantity(taken, entry.value.family)} held is over {entry.value}"
            )
