"""Lending: how the tenants of one card divide the compute and memory that nobody has reserved.

Every share has a request, which the scheduler reserved for it, and a limit that it wants, at least
its request. Each share gets its request. The rest of the card is lent to shares that want more,
first come, first served. So the limits on a card add up to no more than the card has. They are
computed again when a claim comes or goes and when the card's capacity changes: a new request takes
back what was lent, and what a claim leaves is lent again.

Example, the memory of a card with 80Gi:

    A requests 20Gi and wants 60Gi    limits: A 60Gi
    B requests 30Gi                   limits: A 50Gi, B 30Gi
    B ends                            limits: A 60Gi

Not every limit takes part in this:

- A fixed limit is read once, when the container starts, so it could not be taken back (isolation
  `hard`, or an enforcer such as HAMi-core or MPS). It is the request. Once granted it stays, and
  the other shares divide what it leaves.
- A limit also stays if the claim's enforcer could not express its new limits.
- With overcommitted limits nothing is lent or taken back. Each share gets the limit that it wants,
  capped at the card.

Compute is divided like memory. A limiter knows its own container only, and cards give busy
containers equal parts of their time. So a tenant that may use the whole card would take from other
tenants what they have reserved, whatever their own limits are.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingRules:
    """The node's rules for limits above requests.

    Attributes:
        overcommit_limits: True if limits may add up to more than the card has; no single limit
            exceeds the card.
        enforcers: By name. The enforcer that a record names decides whether its limits can change
            while containers run, whatever the node's present setting is. Limits of an enforcer
            that is missing here never change.
    """

    overcommit_limits: bool = False
    enforcers: Mapping[str, Enforcer] = field(default_factory=dict)

    def fixed(self, enforcer: str) -> frozenset[Isolation]:
        """Return the isolation modes in which limits of this enforcer never change once granted.

        All modes for an unknown enforcer.
        """
        known = self.enforcers.get(enforcer)
        return frozenset(Isolation) if known is None else known.facts.fixed

    def mixes(self, enforcer: str, isolation: Isolation) -> bool:
        """Return True if limits of two claims cannot be told apart in one container.

        Either its environment has them, or its one cgroup.
        """
        known = self.enforcers.get(enforcer)
        return known is None or isolation in known.facts.mixed

    def counts_by_pid(self, enforcer: str) -> bool:
        """Return True if this enforcer tells processes apart by their PID in the container."""
        known = self.enforcers.get(enforcer)
        return known is not None and known.facts.counts_by_pid

    def is_fixed(self, claim: PreparedClaim, share: PreparedShare) -> bool:
        """Return True if the share's limit cannot change once a container may have started."""
        return share.isolation in self.fixed(claim.enforcer)

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


def with_first_grant(
    claim: PreparedClaim, devices: Mapping[str, Device], rules: LendingRules
) -> PreparedClaim:
    """Return a new claim with its fixed limits granted; its other limits stay as they are.

    A fixed limit is the request, since more could not be taken back for a later tenant. With
    overcommitted limits nothing is ever taken back, so it is the wanted limit, capped at the card.

    Args:
        claim: The new claim; its limits are the wanted ones.
        devices: By name; all of the claim's.
        rules: The node's rules.
    """
    shares = []
    for share in claim.shares:
        if share.limit is not None and rules.is_fixed(claim, share):
            device = devices[share.device]
            limit = _request(share, device)
            if rules.overcommit_limits:
                limit = within(limit, _wanted(share), total(device))
            share = replace(share, limit=limit)  # noqa: PLW2901
        shares.append(share)
    return replace(claim, shares=tuple(shares))


def with_divided_limits(
    claims: Sequence[PreparedClaim], devices: Mapping[str, Device], rules: LendingRules
) -> list[PreparedClaim]:
    """Return the claims, in the same order, with the limits that apply while all of them exist.

    A claim whose enforcer cannot express its new limits keeps its old ones, and the other claims
    divide what those leave.

    Args:
        claims: All claims with shares of these devices.
        devices: By name; limits on other devices stay as they are.
        rules: The node's rules.
    """
    kept: set[str] = set()
    while True:
        granted = _divided_once(claims, devices, rules, kept)
        refused = {
            new.ref.uid
            for new, old in zip(granted, claims, strict=True)
            if new is not old and rules.refusal(new)
        }
        if not refused:
            return granted
        kept |= refused


def total(device: Device) -> Limit:
    """Return what the device's tenants divide; above 100 percent if its pool oversubscribes."""
    tflops = capacity.divided_capacity(device.capacity, names.CAPACITY_TFLOPS).value
    vram = capacity.divided_capacity(device.capacity, names.CAPACITY_VRAM).value
    whole = Quantity.milli(device.gpu.milli_tflops)
    return Limit(sm_percent=100 * tflops.nano // whole.nano, vram_bytes=vram.ceil())


def demand(
    claim: PreparedClaim, share: PreparedShare, device: Device, rules: LendingRules
) -> tuple[Limit, Limit]:
    """Return the share's request and wanted limit; a fixed limit is both."""
    if rules.is_fixed(claim, share):
        return _fixed_demand(share, device)
    request = _request(share, device)
    return request, request if share.limit is None else _wanted(share)


def within(request: Limit, wanted: Limit, whole: Limit) -> Limit:
    """Return the wanted limit, capped at what the device has, but at least the request."""
    return Limit(
        sm_percent=max(request.sm_percent, min(wanted.sm_percent, whole.sm_percent)),
        vram_bytes=max(request.vram_bytes, min(wanted.vram_bytes, whole.vram_bytes)),
    )


def _divided_once(
    claims: Sequence[PreparedClaim],
    devices: Mapping[str, Device],
    rules: LendingRules,
    kept: AbstractSet[str],
) -> list[PreparedClaim]:
    """Divide each device once.

    Args:
        kept: UIDs of claims whose limits stay as they are.
    """
    granted: dict[tuple[str, int], Limit] = {}
    in_order = sorted(claims, key=lambda claim: (claim.sequence, claim.ref.uid))
    for device in devices.values():
        tenants = [
            (claim, index, share)
            for claim in in_order
            for index, share in enumerate(claim.shares)
            if share.device == device.name and not share.admin_access
        ]
        demands = [
            _fixed_demand(share, device)
            if claim.ref.uid in kept
            else demand(claim, share, device, rules)
            for claim, _, share in tenants
        ]
        whole = total(device)
        if rules.overcommit_limits:
            divided = [within(request, wanted, whole) for request, wanted in demands]
        else:
            compute = limits.granted(
                whole.sm_percent, [(each.sm_percent, want.sm_percent) for each, want in demands]
            )
            memory = limits.granted(
                whole.vram_bytes, [(each.vram_bytes, want.vram_bytes) for each, want in demands]
            )
            divided = [
                Limit(sm_percent=part, vram_bytes=size)
                for part, size in zip(compute, memory, strict=True)
            ]
        granted.update(
            ((claim.ref.uid, index), limit)
            for (claim, index, _), limit in zip(tenants, divided, strict=True)
        )
    return [_with_limits(claim, granted) for claim in claims]


def _request(share: PreparedShare, device: Device) -> Limit:
    """Return what the scheduler reserved for the share; no limit is ever lower."""
    tflops = capacity.consumed_amount(share.consumed, names.CAPACITY_TFLOPS)
    return Limit(sm_percent=limits.percent(tflops, device.gpu), vram_bytes=share.vram_request_bytes)


def _wanted(share: PreparedShare) -> Limit:
    return Limit(sm_percent=share.wanted_sm_percent, vram_bytes=share.wanted_vram_bytes)


def _fixed_demand(share: PreparedShare, device: Device) -> tuple[Limit, Limit]:
    """Return the share's present limit as both request and wanted limit.

    Its container may use this limit, whether it is more or less than the share's request.
    """
    limit = share.limit or _request(share, device)
    return limit, limit


def _with_limits(claim: PreparedClaim, granted: Mapping[tuple[str, int], Limit]) -> PreparedClaim:
    """Return the claim with these limits; the same object if none of them changes."""
    shares = tuple(
        share
        if share.limit is None
        else replace(share, limit=granted.get((claim.ref.uid, index), share.limit))
        for index, share in enumerate(claim.shares)
    )
    return claim if shares == claim.shares else replace(claim, shares=shares)
