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

Not every limit takes part in this. A fixed limit is read once, when the container starts, so it
could not be taken back (isolation `hard`, or an enforcer such as MPS). It is the request, and a
fact of the record, `granted`: once granted it stays, and the other shares divide what it leaves. So
does a limit whose enforcer is unknown by now, since nobody can change it. Under HAMi-core the
compute limit alone is fixed, and memory is divided (`divides_memory`).

Compute that is reserved but idle is lent apart from this, by the enforcer (docs/adr/0072): it comes
and goes with the work of the card's tenants, so no record has it.

Every other limit may become any amount between the request and the wanted limit, so an enforcer has
to be able to express them all (docs/adr/0070).

Some enforcers cannot take back memory that a tenant uses. There a memory limit is at most a few
times the request, so that a tenant that reserves little cannot keep the card for itself.

With overcommitted limits nothing is lent or taken back. Each share gets the limit that it wants,
capped at the card.

Nothing is lent on a card with a share whose record cannot be read: until the record is rebuilt,
each share there has its request.

Compute is divided like memory. A limiter knows its own container only, and cards give busy
containers equal parts of their time. So a tenant that may use the whole card would take from other
tenants what they have reserved, whatever their own limits are. Under Tensor Fusion's hypervisor any
limit above the request does so, therefore it is lent only to a share that is alone on its card
(`lends_compute_alone`, docs/adr/0074).
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.claims.prepared import (
    UNDIVIDED,
    Limit,
    PreparedClaim,
    PreparedShare,
)
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity

_NANO_PER_MILLI: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingRules:
    """The node's rules for limits above requests.

    Attributes:
        overcommit_limits: True if limits may add up to more than the card has; no single limit
            exceeds the card.
        unasked_percent: The compute limit of a share that asks for none, in percent of the card; 0
            for its request.
        factor: Under enforcers that cannot take memory back: memory limit at most this many times
            the request.
        facts: By the name of an enforcer. That of a claim's record decides whether its limits can
            change while containers run, whatever the node's present setting is.
    """

    overcommit_limits: bool = False
    unasked_percent: int = 0
    factor: int = 4
    facts: Mapping[str, EnforcerFacts] = field(default_factory=dict)

    def facts_of(self, enforcer: str) -> EnforcerFacts:
        """Return the facts of the enforcer with this name; the weakest if it is unknown."""
        return self.facts.get(enforcer, EnforcerFacts())

    def demand(
        self, enforcer: str, share: PreparedShare, *, stays: bool, is_alone: bool
    ) -> tuple[Limit, Limit]:
        """Return the smallest and the largest limit that a share may get.

        Args:
            enforcer: That of its claim.
            share: The share.
            stays: True if its limit does not change.
            is_alone: True if its device has no other share.
        """
        request = share.reserved
        wanted = share.wanted
        if share.divides_memory and share.granted:
            sm_percent = share.granted.sm_percent
            request, wanted = (replace(each, sm_percent=sm_percent) for each in (request, wanted))
        if stays or share.limit is None:
            # A container may use a limit that stays, whether it is more or less than its request.
            least = share.limit or request
            return least, least
        facts = self.facts_of(enforcer)
        if facts.lends_compute_alone and not is_alone and not self.overcommit_limits:
            wanted = replace(wanted, sm_percent=request.sm_percent)
        if facts.keeps_lent_memory and not self.overcommit_limits:
            vram_bytes = min(wanted.vram_bytes, self.factor * request.vram_bytes)
            wanted = replace(wanted, vram_bytes=vram_bytes)
        return request, wanted


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


def total(device: Device) -> Limit:
    """Return what the tenants of a device divide.

    If a pool oversubscribes compute, they divide more than 100 percent.
    """
    tflops = capacity.divided_capacity(device.capacity, names.CAPACITY_TFLOPS).value
    vram = capacity.divided_capacity(device.capacity, names.CAPACITY_VRAM).value
    return Limit(
        sm_percent=100 * tflops.nano // (_NANO_PER_MILLI * device.gpu.milli_tflops),
        vram_bytes=vram.ceil(),
    )


def with_totals(claim: PreparedClaim, devices: Mapping[str, Device]) -> PreparedClaim:
    """Return the claim with the present totals of its devices; its limits have to be divided again.

    Args:
        claim: The claim.
        devices: By name; shares of other devices stay as they are.
    """
    shares = []
    for share in claim.shares:
        if share.consumed and (device := devices.get(share.device)) is not None:
            requested = capacity.consumed_amount(share.consumed, names.CAPACITY_TFLOPS)
            share = replace(  # noqa: PLW2901
                share,
                requested_sm_percent=percent(requested, device.gpu),
                total=total(device),
            )
        shares.append(share)
    return replace(claim, shares=tuple(shares))


def within(request: Limit, wanted: Limit, whole: Limit) -> Limit:
    """Return the wanted limit, capped at what the device has, but at least the request."""
    return Limit(
        sm_percent=max(request.sm_percent, min(wanted.sm_percent, whole.sm_percent)),
        vram_bytes=max(request.vram_bytes, min(wanted.vram_bytes, whole.vram_bytes)),
    )


def divided(
    claims: Sequence[PreparedClaim],
    rules: LendingRules,
    devices: Devices = None,
    damaged: Iterable[Devices] = (),
) -> list[PreparedClaim]:
    """Return the claims, in the same order, with the limits that follow from their records.

    A claim that does not change is the same object.

    Args:
        claims: All claims with shares of these devices, perhaps just read from their records.
        rules: The node's rules.
        devices: Limits on other devices stay as they are.
        damaged: Devices of each claim whose record is damaged or missing.
    """
    tenants: dict[str, list[tuple[PreparedClaim, int, PreparedShare, bool]]] = {}
    for claim in sorted(claims, key=lambda claim: (claim.sequence, claim.ref.uid)):
        is_known = claim.enforcer in rules.facts
        for index, share in enumerate(claim.shares):
            if includes(devices, share.device) and not share.admin_access:
                is_divided = share.limit != UNDIVIDED
                is_fixed = share.granted is not None and not share.divides_memory
                stays = is_fixed or (is_divided and not is_known)
                tenants.setdefault(share.device, []).append((claim, index, share, stays))
    full = united(damaged)
    changed: dict[str, list[PreparedShare]] = {}
    for device, found in tenants.items():
        is_alone = len(found) == 1
        demands = [
            rules.demand(claim.enforcer, share, stays=stays, is_alone=is_alone)
            for claim, _, share, stays in found
        ]
        # The smallest, as long as not all records have what was read last.
        whole = Limit(
            sm_percent=min(share.total.sm_percent for _, _, share, _ in found),
            vram_bytes=min(share.total.vram_bytes for _, _, share, _ in found),
        )
        if rules.overcommit_limits:
            parts = [within(request, wanted, whole) for request, wanted in demands]
        elif includes(full, device):
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
            granted = share.granted if share.divides_memory else limit if stays else None
            if (limit, granted) != (share.limit, share.granted):
                shares = changed.setdefault(claim.ref.uid, list(claim.shares))
                shares[index] = replace(share, limit=limit, granted=granted)
    return [
        replace(claim, shares=tuple(changed[claim.ref.uid])) if claim.ref.uid in changed else claim
        for claim in claims
    ]


def request_and_wanted(
    subject: str,
    gpu: Gpu,
    consumed: Mapping[str, Quantity],
    policy: SharePolicy,
    unasked_percent: int = 0,
) -> tuple[Limit, Limit]:
    """Return a share's request, and the limit that it wants, which is at least the request.

    Compute is capped at the whole card. Both amounts may be more than is left: see lent().

    Args:
        subject: Claim and device, for errors.
        gpu: The card.
        consumed: Amounts that the share consumes, by capacity.
        policy: The share's policy.
        unasked_percent: See LendingRules.

    Raises:
        ClaimError: A limit is below what the share consumes.
    """
    for name, text in share_policy.below_request(policy, consumed):
        raise ClaimError(f"{subject}: {name} limit: {text}")
    tflops = capacity.consumed_amount(consumed, names.CAPACITY_TFLOPS)
    vram = capacity.consumed_amount(consumed, names.CAPACITY_VRAM)
    request = wanted = Limit(sm_percent=percent(tflops, gpu), vram_bytes=vram.ceil())
    if policy.tflops_limit:
        wanted = replace(wanted, sm_percent=percent(policy.tflops_limit, gpu))
    elif unasked_percent > request.sm_percent:
        wanted = replace(wanted, sm_percent=unasked_percent)
    if policy.vram_limit:
        wanted = replace(wanted, vram_bytes=max(policy.vram_limit, vram).ceil())
    return request, wanted


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
    return min(100, max(1, -(-100 * tflops.nano // (_NANO_PER_MILLI * gpu.milli_tflops))))
