"""Admission to a node: the record of a claim, and whether it may be kept beside the other records.

The scheduler decides first. But two claims can reach a node with the same share (a force-deleted
pod, an older scheduler, a hand-written status), and this is the last place to notice. All rules
are here or called from here, on plain values.

record() needs no other claim. It builds the record with everything but its place among the claims
of its cards, which the store adds when it is put: its sequence, and its part of what is lent.

1. Its pool and device are this node's.
2. Its consumed amounts are complete and not below the minimum. An exclusive allocation consumes
   the whole device.
3. Its limits are at least what it consumes (see lending.py).
4. It gets a partition if it asked for one, and none otherwise. If a tenant chose its isolation, the
   tenant may do so (see isolation.py). The claim has a single mode.

enforceable() is about the node:

5. Something on the node enforces its limits; a claim for whole cards does without limits instead.

check() is called inside a transaction of the store, so that of two claims that are prepared at the
same time one is refused:

6. Nobody knows what a damaged record holds of its devices, so they count as full, until the record
   is rebuilt from its claim. A claim whose own record is damaged was admitted before, so this check
   does not concern it.
7. Its amounts fit into the device beside the other shares, including those that come earlier in
   the same claim, and its isolation is compatible with theirs.
8. No other claim in one of its containers would mix its limits with them.
9. No earlier pod of its pod's name still has the folder that it needs.

If one of its allocations fails, the whole claim is refused. Admin access consumes nothing and has
no limits, so only the first check applies to it.

Example: on a card with 80Gi, claim A requests 20Gi with a limit of 60Gi. Claim B requests 30Gi and
fits, because 20Gi + 30Gi is at most 80Gi. B's limit is 30Gi, and A's is 50Gi from then on. A claim
C for 31Gi is then refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import (
    device_metadata,
    isolation,
    lending,
    share_policy,
)
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.lending import Devices, LendingRules
from tensorfusion_dra.core.claims.prepared import (
    NOTHING,
    CardAccess,
    Limit,
    PreparedClaim,
    PreparedShare,
    SharedAccess,
)
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import Quantity

_WHY: Final = "its enforcer cannot tell two claims apart"


@dataclass(frozen=True, slots=True)
class ContainerNeighbours:
    """Claims that share a container with a claim.

    Attributes:
        names: Claims of the same namespace that a container uses together with the claim.
        is_known: False if the driver may not read pods; then every claim of the pods counts.
    """

    names: frozenset[str] = frozenset()
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """Facts that an admission needs besides the records; all reading is done before.

    Attributes:
        pool: The node's resource pool.
        devices: By name.
        access: By device name, for the requested devices.
        shared_access: Access that a container with any of them needs once.
        enforcer: Name of the claim's enforcer.
        hard_needs: What isolation hard needs; "" if the enforcer brings a limiter for it.
        none_found: Why claims with limits are refused: no enforcer is there; "" if one is.
        unenforced: Why claims are refused whose limits depend on a sign of the enforcer; "" if it
            is there, or if none has to be.
        rules: Rules for limits above requests.
        boot_id: ID of this boot.
        describes_devices: True if containers get files with the metadata of their devices.
        policies: One for each of the claim's allocations.
        neighbours: Claims that share a container with the claim.
        group: What the claim is reserved for instead of pods; "" if for pods.
        shown: Fixed limits of a claim whose record is damaged, by device and share ID: its
            containers were started with them.
    """

    pool: str
    devices: Mapping[str, Device]
    access: Mapping[str, CardAccess]
    shared_access: SharedAccess
    enforcer: str = ""
    hard_needs: str = isolation.HARD_NEEDS
    none_found: str = ""
    unenforced: str = ""
    rules: LendingRules = field(default_factory=LendingRules)
    boot_id: str = ""
    describes_devices: bool = False
    policies: Sequence[SharePolicy] = ()
    neighbours: ContainerNeighbours = ContainerNeighbours()
    group: str = ""
    shown: Mapping[tuple[str, str | None], Limit] = field(default_factory=dict)


def record(claim: AllocatedClaim, facts: ClaimFacts) -> PreparedClaim:
    """Return the record of a claim by itself. A limit that is not fixed is the wanted one.

    Raises:
        ClaimError: A device is not this node's, an amount is missing or too small, a limit is
            below its request, or a tenant chose an isolation that it may not choose.
    """
    shares = [
        _share(claim, allocation, policy, facts)
        for allocation, policy in zip(claim.allocations, facts.policies, strict=True)
    ]
    isolation.check_one(claim.ref, shares)
    limited = [share for share in shares if not share.admin_access]
    if not all(share.idle_compute for share in limited):
        # A container may use several of them, and has its compute limits lifted as a whole.
        shares = [replace(share, idle_compute=False) for share in shares]
    metadata = None
    if facts.describes_devices:
        metadata = device_metadata.of_claim(claim, facts.devices)
    return PreparedClaim(
        ref=claim.ref,
        shares=tuple(shares),
        pods=claim.pods,
        common_nodes=facts.shared_access.device_nodes,
        driver_mounts=facts.shared_access.driver_mounts,
        enforcer=facts.enforcer,
        boot_id=facts.boot_id,
        metadata=metadata,
    )


def _share(
    claim: AllocatedClaim, allocation: Allocation, policy: SharePolicy, facts: ClaimFacts
) -> PreparedShare:
    if allocation.pool != facts.pool:
        raise ClaimError(
            f"claim {claim.ref}: allocated from pool {allocation.pool}, this node's is {facts.pool}"
        )
    device = facts.devices.get(allocation.device)
    if device is None:
        known = ", ".join(sorted(facts.devices)) or "none"
        raise ClaimError(
            f"claim {claim.ref}: device {allocation.device} unknown, this node has {known}"
        )
    consumed: Mapping[str, Quantity] = {}
    request = wanted = total = NOTHING
    limit = granted = None
    divides_memory = idle_compute = False
    if not allocation.admin_access:
        subject = f"claim {claim.ref}: {device.name}"
        isolation.check_kind(subject, policy.isolation, device)
        consumed = _consumed(subject, allocation, device)
        if device.own_enforcer:
            policy = replace(policy, tflops_limit=None, vram_limit=None)  # it has limits of its own
        request, wanted = lending.request_and_wanted(
            subject, device.gpu, consumed, policy, facts.rules.unasked_percent
        )
        total = lending.total(device)
        if policy.isolation_by_tenant:
            isolation.check_choice(
                subject,
                policy.isolation,
                consumed=consumed,
                device=device.capacity,
                hard_needs=facts.hard_needs,
            )
        if policy.limiter and policy.isolation is not Isolation.SHARED:
            limit = wanted
            enforcer = facts.rules.facts_of(facts.enforcer)
            if policy.isolation in enforcer.fixed_compute:
                # More than the request could not be taken back for a later tenant. With
                # overcommitted limits nothing is ever taken back.
                given = request
                if facts.rules.overcommit_limits:
                    given = lending.within(request, wanted, total)
                shown = facts.shown.get((device.name, allocation.share_id))
                granted = shown or given
                divides_memory = policy.isolation not in enforcer.fixed_memory
                if divides_memory:
                    granted = replace(granted, vram_bytes=request.vram_bytes)
                    limit = replace(granted, vram_bytes=wanted.vram_bytes)
                    wants_more = wanted.sm_percent > granted.sm_percent
                    # A container that runs already may have been started without it.
                    idle_compute = enforcer.lends_idle_compute and wants_more and shown is None
                else:
                    limit = granted
    access = facts.access[device.name]
    return PreparedShare(
        request=allocation.request,
        pool=allocation.pool,
        device=device.name,
        gpu_uuid=device.gpu.uuid,
        share_id=allocation.share_id,
        consumed=consumed,
        exclusive=allocation.share_id is None and not allocation.admin_access,
        admin_access=allocation.admin_access,
        device_nodes=access.device_nodes,
        isolation=policy.isolation,
        qos=policy.qos,
        toolkit_device=access.toolkit_device,
        pci_bus_id=device.gpu.pci_bus_id or "",
        wanted_vram_bytes=wanted.vram_bytes,
        wanted_sm_percent=wanted.sm_percent,
        requested_sm_percent=request.sm_percent,
        total=total,
        granted=granted,
        limit=limit,
        divides_memory=divides_memory,
        idle_compute=idle_compute,
    )


def enforceable(
    record: PreparedClaim, enforcer: Enforcer, missing: str, facts: ClaimFacts
) -> PreparedClaim:
    """Return the record; without limits if nothing enforces them, and whole cards need none.

    Args:
        record: From record().
        enforcer: The claim's.
        missing: Error of a claim for which the host lacks a file or socket; "" if it lacks none.
        facts: What was read for the claim.

    Raises:
        RetryableError: Nothing on the node would enforce the limits now; the kubelet asks again.
    """
    reason = missing
    # What a partition has is the same for whoever uses it, and nothing keeps it but the card.
    if any(share.limit and share.isolation in share_policy.OF_CARDS for share in record.shares):
        reason = reason or facts.none_found
        if group := facts.group:
            reason = (
                f"reserved for {group}, which does not say whose limits to keep; expected a "
                "claim of whole cards, or one that is named in pods alone"
            )
    if facts.unenforced and not reason and enforcer_rules.needs_evidence(record, enforcer):
        reason = facts.unenforced
    if not reason:
        return record
    unlimited = isolation.without_limits(record, facts.devices)
    if unlimited is None:
        raise RetryableError(f"claim {record.ref}: {reason}")
    return unlimited


def check(
    record: PreparedClaim,
    facts: ClaimFacts,
    pod_folder: Callable[[PreparedClaim], str],
    recorded: Iterable[PreparedClaim],
    damaged: Mapping[str, Devices] = {},
) -> None:
    """Check that a claim may be kept beside the recorded ones.

    Args:
        record: From enforceable().
        facts: What was read for the claim.
        pod_folder: Returns the host folder that a claim shares with others of its pod; "" if none.
        recorded: All recorded claims of the node. A record of the claim itself is ignored.
        damaged: Devices of the claims whose record is damaged or missing, by UID.

    Raises:
        ClaimError: The shares of a device would exceed it, the device's tenants would have
            incompatible isolation, or limits would mix with those of another claim.
        RetryableError: A record is damaged, or an earlier pod still has the claim's folder; the
            kubelet asks again.
    """
    ref = record.ref
    if ref.uid not in damaged:
        _check_damage(record, damaged)
    others = [other for other in recorded if other.ref.uid != ref.uid]
    fixed = facts.rules.facts_of(record.enforcer).fixed_compute
    tenants: dict[str, list[tuple[ClaimRef, PreparedShare]]] = {}
    for other in others:
        for share in other.shares:
            tenants.setdefault(share.device, []).append((other.ref, share))
    for share in record.shares:
        on_device = tenants.setdefault(share.device, [])
        if not share.admin_access:
            beside = [(other, each) for other, each in on_device if not each.admin_access]
            _check_fits(ref, share, facts.devices[share.device], beside)
            isolation.check_beside(ref, share, beside, fixed=fixed)
        on_device.append((ref, share))
    _check_neighbours(record, facts.neighbours, others, facts.rules)
    _check_folder(record, others, pod_folder)


def _check_damage(claim: PreparedClaim, damaged: Mapping[str, Devices]) -> None:
    for share in claim.shares:
        for uid, devices in damaged.items():
            if lending.includes(devices, share.device):
                shown = "its devices are unknown" if devices is None else "it has a share of this"
                raise RetryableError(
                    f"claim {claim.ref}: {share.device}: found the record of claim {uid} "
                    f"damaged or missing ({shown}), expected it to be rebuilt from its claim; "
                    "until then nothing more is given out here"
                )


def _check_fits(
    ref: ClaimRef,
    share: PreparedShare,
    device: Device,
    tenants: Sequence[tuple[ClaimRef, PreparedShare]],
) -> None:
    for other, existing in tenants:
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
    in_use = capacity.in_use([each.consumed for _, each in tenants], device.capacity)
    for name, entry in device.capacity.items():
        if not share.consumed[name].nano and name not in names.CAPACITIES:
            continue  # a provider may have lowered the capacity below what others consume
        taken = in_use[name]
        total = taken + share.consumed[name].nano
        if total > entry.value.nano:
            by = printable.first(sorted({str(other) for other, _ in tenants if other != ref}))
            raise ClaimError(
                f"claim {ref}: {device.name}: {name}: found {share.consumed[name]} plus "
                f"{Quantity(taken, entry.value.family)} in use, expected at most {entry.value}"
                + (f" (in use by {by})" if by else "")
            )


def _consumed(subject: str, allocation: Allocation, device: Device) -> Mapping[str, Quantity]:
    """Return what the share consumes of every capacity of the device.

    An allocation without a share ID is exclusive and consumes the whole device: an API server with
    DRAConsumableCapacity off allocates in this way, whatever the driver publishes.
    """
    if allocation.share_id is None:
        if allocation.consumed:
            raise ClaimError(f"{subject}: found consumed capacity without a share ID")
        return {name: entry.value for name, entry in device.capacity.items()}
    taken: dict[str, Quantity] = {}
    for name, entry in device.capacity.items():
        if name not in names.CAPACITIES:
            # Of another package. It becomes no limit; the scheduler adds it up, and so does
            # _check_fits(). None if the claim was allocated before the capacity was published.
            taken[name] = allocation.consumed.get(name, capacity.NONE)
            continue
        if name not in allocation.consumed and name not in capacity.VIRTUAL:
            raise ClaimError(f"{subject}: {name}: found no consumed capacity, expected one")
        # The amount may be from before the pool started or stopped oversubscribing, and so named
        # differently from the capacity that it counts against today.
        amount = capacity.taken_amount(allocation.consumed, name, device.capacity)
        # An amount below the minimum could become a limit of 0, which a limiter takes for no limit.
        if amount < entry.minimum:
            raise ClaimError(
                f"{subject}: {name}: found {amount}, expected at least {entry.minimum}"
            )
        taken[name] = amount
    return taken


def _check_neighbours(
    claim: PreparedClaim,
    neighbours: ContainerNeighbours,
    recorded: Iterable[PreparedClaim],
    rules: LendingRules,
) -> None:
    """Check that no prepared claim shares a container with this one, so that limits would mix.

    Enforcers that set limits by environment variables, or on the container's cgroup, cannot keep
    two claims of one container apart (core/kubernetes/resource_claims.py explains why). So of two
    such claims, the one that is prepared second is refused. Without the permission to read pods,
    every prepared claim of the same pod counts as a claim of the same container.

    Raises:
        ClaimError: A prepared claim does, or may do so because pods cannot be read.
    """
    if neighbours.is_known and not neighbours.names:
        return
    pods = {pod.uid for pod in claim.pods}
    mixes = _mixes(claim, rules)
    for other in recorded:
        if other.ref.namespace != claim.ref.namespace or not other.shares:
            continue
        if not mixes and not _mixes(other, rules):
            continue
        text = f"claim {claim.ref}: found claim {other.ref} "
        if neighbours.is_known and other.ref.name in neighbours.names:
            raise ClaimError(
                f"{text}in the same container, expected one claim for each container: "
                f"{_WHY}; ask for its GPUs in one claim with several requests"
            )
        if not neighbours.is_known and pods & {pod.uid for pod in other.pods}:
            raise ClaimError(
                f"{text}for the same pod, expected one claim for each pod: {_WHY}, and this "
                "driver may not read which containers use them (--read-pods); ask for the "
                "pod's GPUs in one claim with several requests"
            )


def _mixes(claim: PreparedClaim, rules: LendingRules) -> bool:
    """Return True if the claim's limits would mix with those of another claim in a container.

    Also True for a claim with limits whose enforcer is unknown, because it may be such a one.
    """
    return any(
        share.limit and share.isolation in rules.facts_of(claim.enforcer).mixed
        for share in claim.shares
    )


def _check_folder(
    claim: PreparedClaim,
    recorded: Iterable[PreparedClaim],
    pod_folder: Callable[[PreparedClaim], str],
) -> None:
    """Refuse a claim while an earlier pod of its pod's name has the folder that it needs.

    Raises:
        RetryableError: That pod was deleted by force, and the kubelet still ends it.
    """
    folder = pod_folder(claim)
    names_of_pods, uids = {pod.name for pod in claim.pods}, {pod.uid for pod in claim.pods}
    for other in recorded if folder else ():
        for pod in other.pods:
            is_earlier = pod.name in names_of_pods and pod.uid not in uids
            if is_earlier and pod_folder(other) == folder:
                raise RetryableError(
                    f"pod {pod}: UID {', '.join(uids)}: found claim {other.ref} of an earlier pod "
                    f"of this name still prepared, UID {pod.uid}, expected the kubelet to "
                    f"unprepare it"
                )
