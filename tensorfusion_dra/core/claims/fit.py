"""The last check before a device is handed out: a claim has to fit beside the recorded claims.

The scheduler decides first. But two claims can reach a node with the same share (a force-deleted
pod, an older scheduler, a hand-written status), and this is the last place to notice.

fit() checks every allocation of the claim. If one of them fails, the whole claim is refused.

1. Its pool and device are this node's.
2. Its consumed amounts are complete and not below the minimum. An exclusive allocation consumes
   the whole device.
3. Its limits are at least what it consumes (see limits.py).
4. If a tenant chose its isolation, the tenant may do so (see isolation.py).
5. Its amounts fit into the device beside the other shares, including those that come earlier in
   the same claim.
6. Its isolation is compatible with that of the other shares, and the claim has a single mode.

Admin access consumes nothing and has no limits, so only the first check applies to it.

A claim that fits becomes a record with its device nodes and limits. Its request may take back what
was lent to other claims (see lending.py), so the result includes their changed records.

Example: on a card with 80Gi, claim A requests 20Gi with a limit of 60Gi. Claim B requests 30Gi and
fits, because 20Gi + 30Gi is at most 80Gi. The result is B's record with a limit of 30Gi and A's
record with a limit of 50Gi. A claim C for 31Gi is then refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import access, isolation, lending, limits
from tensorfusion_dra.core.claims.access import CardAccess, SharedAccess
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, ClaimRef
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Devices and rules of this node, for the check of one claim.

    Attributes:
        pool: The node's resource pool.
        devices: By name.
        access: By device name, for the requested devices.
        shared_access: Access that a container with any of them needs once.
        enforcer: Name of the node's enforcer.
        enforces_hard: True if the enforcer brings a limiter for hard isolation.
        rules: Rules for limits above requests.
        boot_id: ID of this boot.
        describes_devices: True if containers get files with the metadata of their devices.
    """

    pool: str
    devices: Mapping[str, Device]
    access: Mapping[str, CardAccess]
    shared_access: SharedAccess
    enforcer: str
    enforces_hard: bool = False
    rules: LendingRules = field(default_factory=LendingRules)
    boot_id: str = ""
    describes_devices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A claim that fits, and the records of other claims that change with it.

    Attributes:
        claim: The claim's record.
        changed: Records of other claims whose limits shrank in favour of its request.
    """

    claim: PreparedClaim
    changed: tuple[PreparedClaim, ...]


def fit(
    claim: AllocatedClaim,
    policies: Sequence[SharePolicy],
    offer: NodeFacts,
    existing: Iterable[PreparedClaim],
) -> Fit:
    """Return the record of a claim that fits.

    Args:
        claim: The allocated claim.
        policies: One for each of its allocations.
        offer: This node.
        existing: Recorded claims with shares of the claim's devices. A record of the claim itself
            is ignored.

    Raises:
        ClaimError: A device is not this node's, an amount is missing or too small, a limit is
            below its request, the shares of a device would exceed it, a tenant chose an isolation
            that it may not choose, or the device's tenants would have incompatible isolation.
            Then no part of the claim is admitted.
    """
    others = [other for other in existing if other.ref.uid != claim.ref.uid]
    fixed = offer.rules.fixed(offer.enforcer)
    shares: list[PreparedShare] = []
    for allocation, policy in zip(claim.allocations, policies, strict=True):
        device = _local_device(claim.ref, allocation, offer)
        share = _share(claim.ref, allocation, device, policy)
        if policy.isolation_by_tenant and not share.admin_access:
            isolation.check_choice(
                f"claim {claim.ref}: {device.name}",
                share.isolation,
                consumed=share.consumed,
                device=device.capacity,
                enforces_hard=offer.enforces_hard,
            )
        tenants = [
            *((other.ref, s) for other in others for s in other.shares if s.device == device.name),
            *((claim.ref, each) for each in shares if each.device == device.name),
        ]
        _check_fits(claim.ref, share, device, tenants)
        isolation.check_beside(claim.ref, share, tenants, fixed=fixed)
        shares.append(share)
    isolation.check_one(claim.ref, shares)
    record = PreparedClaim(
        ref=claim.ref,
        shares=tuple(shares),
        sequence=1 + max((other.sequence for other in others), default=0),
        pods=claim.pods,
        enforcer=offer.enforcer,
    )
    record = access.refreshed(record, offer.access, offer.shared_access, boot_id=offer.boot_id)
    involved = {share.device: offer.devices[share.device] for share in shares}
    record = lending.with_first_grant(record, involved, offer.rules)
    *changed, record = lending.with_divided_limits([*others, record], involved, offer.rules)
    return Fit(
        claim=record,
        changed=tuple(new for new, old in zip(changed, others, strict=True) if new is not old),
    )


def _local_device(ref: ClaimRef, allocation: Allocation, offer: NodeFacts) -> Device:
    if allocation.pool != offer.pool:
        raise ClaimError(
            f"claim {ref}: allocated from pool {allocation.pool}, this node's is {offer.pool}"
        )
    device = offer.devices.get(allocation.device)
    if device is None:
        known = ", ".join(sorted(offer.devices)) or "none"
        raise ClaimError(f"claim {ref}: device {allocation.device} unknown, this node has {known}")
    return device


def _share(
    ref: ClaimRef, allocation: Allocation, device: Device, policy: SharePolicy
) -> PreparedShare:
    consumed: Mapping[str, Quantity] = {}
    wanted = limit = None
    if not allocation.admin_access:
        consumed = _consumed(ref, allocation, device)
        wanted = limits.wanted(f"claim {ref}: {device.name}", device.gpu, consumed, policy)
        unlimited = policy.isolation is Isolation.SHARED or not policy.limiter
        limit = None if unlimited else wanted
    return PreparedShare(
        request=allocation.request,
        pool=allocation.pool,
        device=device.name,
        gpu_uuid=device.gpu.uuid,
        share_id=allocation.share_id,
        consumed=consumed,
        exclusive=allocation.share_id is None and not allocation.admin_access,
        admin_access=allocation.admin_access,
        device_nodes=(),
        isolation=policy.isolation,
        qos=policy.qos,
        toolkit_device=None,
        pci_bus_id=device.gpu.pci_bus_id or "",
        wanted_vram_bytes=wanted.vram_bytes if wanted else 0,
        wanted_sm_percent=wanted.sm_percent if wanted else 0,
        limit=limit,
    )


def _check_fits(
    ref: ClaimRef,
    share: PreparedShare,
    device: Device,
    tenants: Sequence[tuple[ClaimRef, PreparedShare]],
) -> None:
    if share.admin_access:
        return
    consuming = [(other, existing) for other, existing in tenants if not existing.admin_access]
    for other, existing in consuming:
        if share.exclusive or existing.exclusive:
            raise ClaimError(
                f"claim {ref}: {device.name}: found {other} on the device, expected no other claim "
                "beside an exclusive allocation"
            )
        if share.share_id == existing.share_id:
            raise ClaimError(
                f"claim {ref}: {device.name}: found share {share.share_id} in use by {other}, "
                "expected a share of its own"
            )
    for name, entry in device.capacity.items():
        if not share.consumed[name].nano and _is_provided(name):
            continue  # a provider may have lowered the capacity below what others consume
        counted = (
            capacity.counted_amount(each.consumed, name, device.capacity) for _, each in consuming
        )
        taken = sum((amount.nano for amount in counted), start=0)
        total = taken + share.consumed[name].nano
        if total > entry.value.nano:
            raise ClaimError(
                f"claim {ref}: {device.name}: {name}: found {share.consumed[name]} plus "
                f"{Quantity(taken, entry.value.family)} in use, expected at most {entry.value}"
            )


def _consumed(ref: ClaimRef, allocation: Allocation, device: Device) -> Mapping[str, Quantity]:
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
        if _is_provided(name):
            # None if the claim was allocated before the capacity was published.
            taken[name] = allocation.consumed.get(name, capacity.NONE)
            continue
        if name not in allocation.consumed and name not in capacity.VIRTUAL:
            raise ClaimError(f"{subject}: {name}: found no consumed capacity, expected one")
        # The amount may be from before the pool started or stopped oversubscribing, and so named
        # differently from the capacity that it counts against today.
        amount = capacity.counted_amount(allocation.consumed, name, device.capacity)
        if capacity.is_outgrown(allocation.consumed, name, device.capacity):
            amount = min(amount, entry.value)
        # An amount below the minimum could become a limit of 0, which a limiter takes for no limit.
        if amount < entry.minimum:
            raise ClaimError(
                f"{subject}: {name}: found {amount}, expected at least {entry.minimum}"
            )
        taken[name] = amount
    return taken


def _is_provided(name: str) -> bool:
    """Return True for a capacity that a provider of another package gives.

    Such an amount becomes no limit. The scheduler adds it up, and so does this check.
    """
    return name not in names.CAPACITIES
