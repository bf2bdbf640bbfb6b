"""Lending: how the tenants of one card divide the compute and memory that nobody has reserved.

Every share has a request, which the scheduler reserved for it, and a limit that it wants, at least
its request. Each share gets its request. The rest of the card is lent to shares that want more,
first come, first served. So the limits on a card add up to no more than the card has. A new request
takes back what was lent, and what a claim leaves is lent again.

Example, the memory of a card with 80Gi:

    A requests 20Gi and wants 60Gi    limits: A 60Gi
    B requests 30Gi                   limits: A 50Gi, B 30Gi
    B ends                            limits: A 60Gi

So limits follow from the set of claims. A record has what they follow from: the order of the
claims, and of each share its request, the limit that it wants, and what the tenants of its device
divide, as last read. divided() computes the limits from that, whatever happened before, so that all
instances, and every start, compute the same.

Not every limit takes part in this. What cannot be computed is a fact of the record, `granted`:

- A fixed limit is read once, when the container starts, so it could not be taken back (isolation
  `hard`, or an enforcer such as HAMi-core or MPS). It is the request. Once granted it stays, and
  the other shares divide what it leaves.
- A limit also stays if the claim's enforcer could not express its new limits, as long as it cannot.

Some enforcers cannot take back memory that a tenant uses. There a memory limit is at most a few
times the request, so that a tenant that reserves little cannot keep the card for itself.

With overcommitted limits nothing is lent or taken back. Each share gets the limit that it wants,
capped at the card.

Nothing is lent on a card on which a share is known whose record cannot be read: each share there
has its request, until the record is rebuilt.

Compute is divided like memory. A limiter knows its own container only, and cards give busy
containers equal parts of their time. So a tenant that may use the whole card would take from other
tenants what they have reserved, whatever their own limits are.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.enforcer import Enforcer, EnforcerFacts
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingRules:
    """The node's rules for limits above requests.

    Attributes:
        overcommit_limits: True if limits may add up to more than the card has; no single limit
            exceeds the card.
        factor: Under enforcers that cannot take memory back: memory limit at most this many times
            the request.
        enforcers: By name. The enforcer that a record names decides whether its limits can change
            while containers run, whatever the node's present setting is. Limits of an enforcer
            that is missing here never change.
    """

    overcommit_limits: bool = False
    factor: int = 4
    enforcers: Mapping[str, Enforcer] = field(default_factory=dict)

    def facts(self, enforcer: str) -> EnforcerFacts:
        """Return the facts of the enforcer of this name; of an unknown one the least promises."""
        known = self.enforcers.get(enforcer)
        return EnforcerFacts() if known is None else known.facts

    def most(self, enforcer: str, share: PreparedShare) -> Limit:
        """Return the largest limit that a share may get."""
        vram_bytes = share.wanted_vram_bytes
        if self.facts(enforcer).keeps_lent_memory and not self.overcommit_limits:
            vram_bytes = min(vram_bytes, self.factor * share.reserved.vram_bytes)
        return replace(share.wanted, vram_bytes=vram_bytes)

    def refusal(self, claim: PreparedClaim) -> str:
        """Return why the claim's enforcer cannot express its limits; "" if it can."""
        enforcer = self.enforcers.get(claim.enforcer)
        if enforcer is None:
            return f"enforcer {claim.enforcer!r}, expected one of {sorted(self.enforcers)}"
        try:
            enforcer.needs(claim)
        except ClaimError as error:
            return str(error)
        return ""


Devices = AbstractSet[str] | None
"""Names of devices; None for every device of the node."""


def includes(devices: Devices, device: str) -> bool:
    """Return True if the device is one of these."""
    return devices is None or device in devices


def united(every: Iterable[Devices]) -> Devices:
    """Return the devices that are among any of these."""
    found: set[str] = set()
    for devices in every:
        if devices is None:
            return None
        found |= devices
    return found


def with_first_grant(
    claim: PreparedClaim, rules: LendingRules, shown: Mapping[tuple[str, str | None], Limit]
) -> PreparedClaim:
    """Return a new claim with its fixed limits; its other limits stay as they are.

    A fixed limit is the request, since more could not be taken back for a later tenant. With
    overcommitted limits nothing is ever taken back, so it is the wanted limit, capped at the card.

    Args:
        claim: The new claim; its limits are the wanted ones.
        rules: The node's rules.
        shown: Limits by device and share ID that the claim got before its record was damaged; its
            containers were started with them.
    """
    fixed = rules.facts(claim.enforcer).fixed
    shares = []
    for share in claim.shares:
        if share.limit is not None and share.isolation in fixed:
            limit = share.reserved
            if rules.overcommit_limits:
                limit = within(limit, share.wanted, share.total)
            limit = shown.get((share.device, share.share_id), limit)
            share = replace(share, limit=limit)  # noqa: PLW2901
        shares.append(share)
    return replace(claim, shares=tuple(shares))


def with_totals(claim: PreparedClaim, devices: Mapping[str, Device]) -> PreparedClaim:
    """Return the claim with what its devices have now; the limits are to be divided again.

    If a pool oversubscribes compute, its tenants divide more than 100 percent.

    Args:
        claim: The claim.
        devices: By name; shares of other devices stay as they are.
    """
    shares = []
    for share in claim.shares:
        if share.consumed and (device := devices.get(share.device)) is not None:
            requested = capacity.consumed_amount(share.consumed, names.CAPACITY_TFLOPS)
            tflops = capacity.divided_capacity(device.capacity, names.CAPACITY_TFLOPS).value
            vram = capacity.divided_capacity(device.capacity, names.CAPACITY_VRAM).value
            whole = Quantity.milli(device.gpu.milli_tflops)
            share = replace(  # noqa: PLW2901
                share,
                request_sm_percent=percent(requested, device.gpu),
                total=Limit(sm_percent=100 * tflops.nano // whole.nano, vram_bytes=vram.ceil()),
            )
        shares.append(share)
    return replace(claim, shares=tuple(shares))


def divided(
    claims: Sequence[PreparedClaim], rules: LendingRules, damaged: Devices = frozenset()
) -> list[PreparedClaim]:
    """Return the claims, in the same order, with the limits that follow from their records.

    Args:
        claims: All claims of the node, as read from their records.
        rules: The node's rules.
        damaged: Devices of claims whose record cannot be read.
    """
    return _divided(claims, None, rules, damaged, None)


def redistribute_limits(
    claims: Sequence[PreparedClaim],
    rules: LendingRules,
    devices: Devices = None,
    damaged: Devices = frozenset(),
) -> list[PreparedClaim]:
    """Return the claims, in the same order, with their limits after a change of the set.

    A claim whose enforcer cannot express its new limits keeps its old ones, which its record then
    has, and the other claims divide what those leave. A claim that does not change at all is the
    same object.

    Args:
        claims: All claims with shares of these devices.
        rules: The node's rules.
        devices: Limits on other devices stay as they are.
        damaged: Devices of claims whose record cannot be read.
    """
    kept: set[str] = set()
    while True:
        found = _divided(claims, devices, rules, damaged, kept)
        refused = {
            new.ref.uid
            for new, old in zip(found, claims, strict=True)
            if new is not old and new.ref.uid not in kept and rules.refusal(new)
        }
        if not refused:
            return found
        kept |= refused


def within(request: Limit, wanted: Limit, whole: Limit) -> Limit:
    """Return the wanted limit, capped at what the device has, but at least the request."""
    return Limit(
        sm_percent=max(request.sm_percent, min(wanted.sm_percent, whole.sm_percent)),
        vram_bytes=max(request.vram_bytes, min(wanted.vram_bytes, whole.vram_bytes)),
    )


def _divided(
    claims: Sequence[PreparedClaim],
    devices: Devices,
    rules: LendingRules,
    damaged: Devices,
    kept: AbstractSet[str] | None,
) -> list[PreparedClaim]:
    """Divide each device once; a claim that does not change is the same object.

    Args:
        kept: UIDs of claims whose limits stay as they are, so that they are granted, like fixed
            ones; None if the records say which limits are.
    """
    tenants: dict[str, list[tuple[PreparedClaim, int, PreparedShare, bool]]] = {}
    for claim in sorted(claims, key=lambda claim: (claim.sequence, claim.ref.uid)):
        fixed = rules.facts(claim.enforcer).fixed
        for index, share in enumerate(claim.shares):
            stays = share.granted is not None
            if kept is not None:
                stays = claim.ref.uid in kept or share.isolation in fixed
            if includes(devices, share.device) and not share.admin_access:
                tenants.setdefault(share.device, []).append((claim, index, share, stays))
    changed: dict[str, list[PreparedShare]] = {}
    for device, found in tenants.items():
        demands = [
            # Its container may use this limit, whether it is more or less than its request.
            (share.limit or share.reserved,) * 2
            if stays
            else (
                share.reserved,
                rules.most(claim.enforcer, share) if share.limit else share.reserved,
            )
            for claim, _, share, stays in found
        ]
        # The smallest, as long as not all records have what was read last.
        whole = Limit(
            sm_percent=min(share.total.sm_percent for _, _, share, _ in found),
            vram_bytes=min(share.total.vram_bytes for _, _, share, _ in found),
        )
        if rules.overcommit_limits:
            parts = [within(request, wanted, whole) for request, wanted in demands]
        elif includes(damaged, device):
            parts = [request for request, _ in demands]
        else:
            compute = lent(
                whole.sm_percent, [(each.sm_percent, want.sm_percent) for each, want in demands]
            )
            memory = lent(
                whole.vram_bytes, [(each.vram_bytes, want.vram_bytes) for each, want in demands]
            )
            parts = [
                Limit(sm_percent=part, vram_bytes=size)
                for part, size in zip(compute, memory, strict=True)
            ]
        for (claim, index, share, stays), part in zip(found, parts, strict=True):
            limit = part if share.limit else None
            granted = limit if stays else None
            if (limit, granted) != (share.limit, share.granted):
                shares = changed.setdefault(claim.ref.uid, list(claim.shares))
                shares[index] = replace(share, limit=limit, granted=granted)
    return [
        replace(claim, shares=tuple(changed[claim.ref.uid])) if claim.ref.uid in changed else claim
        for claim in claims
    ]


def wanted(subject: str, gpu: Gpu, consumed: Mapping[str, Quantity], policy: SharePolicy) -> Limit:
    """Return the limit that a share wants: that of its policy, at least what it consumes.

    Compute is capped at the whole card. Both amounts may be more than is left: see lent().

    Args:
        subject: Claim and device, for errors.
        gpu: The card.
        consumed: Amounts that the share consumes, by capacity.
        policy: The share's policy.

    Raises:
        ClaimError: A limit is below what the share consumes.
    """
    tflops = capacity.consumed_amount(consumed, names.CAPACITY_TFLOPS)
    vram = capacity.consumed_amount(consumed, names.CAPACITY_VRAM)
    for name, text in share_policy.below_request(policy, consumed):
        raise ClaimError(f"{subject}: {name} limit: {text}")
    return Limit(
        sm_percent=percent(policy.tflops_limit or tflops, gpu),
        vram_bytes=max(policy.vram_limit or vram, vram).ceil(),
    )


def lent(total: int, demands: Sequence[tuple[int, int]]) -> list[int]:
    """Return the limits of a card's tenants, who are in the order in which they came.

    Each tenant gets its request, which is reserved for it. The rest is lent to tenants that want
    more, first come, first served. So the limits add up to no more than the card has, and a later
    tenant's request takes back what was lent to an earlier one.

    Example: lent(80, [(20, 60), (30, 30)]) returns [50, 30].

    Args:
        total: Amount of the card that tenants divide: bytes of memory, or percent of its compute.
        demands: Request and wanted limit of each tenant, in the same unit.
    """
    spare = total - sum(request for request, _ in demands)
    limits = []
    for request, limit in demands:
        extra = max(0, min(limit - request, spare))
        spare -= extra
        limits.append(request + extra)
    return limits


def percent(tflops: Quantity, gpu: Gpu) -> int:
    """Return compute as a percentage, rounded up, 1 to 100, as Tensor Fusion's hypervisor does."""
    whole = Quantity.milli(gpu.milli_tflops)
    return min(100, max(1, -(-100 * tflops.nano // whole.nano)))
