"""How the tenants of one card divide its compute and memory beyond what each has reserved.

Compute is divided as memory is. A limiter knows its own container only, and cards give busy
containers equal parts of their time. So a tenant that may use all of a card takes from the others
what they have reserved, whatever their own limits say.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The node's rules for limits above requests.

    Attributes:
        overcommit_limits: Limits may add up to more than the card has; no single one exceeds it.
        enforcers: By name. The enforcer that a record names decides whether its limits can change
            while containers run, whatever the node's settings say today. Limits of an enforcer
            that is not among them never change.
    """

    overcommit_limits: bool = False
    enforcers: Mapping[str, Enforcer] = field(default_factory=dict)

    def fixed(self, enforcer: str) -> frozenset[Isolation]:
        """Isolation modes in which limits by this enforcer stay as a container started with them.

        All modes for an enforcer that is not known.
        """
        known = self.enforcers.get(enforcer)
        return frozenset(Isolation) if known is None else known.fixed

    def is_fixed(self, claim: PreparedClaim, share: PreparedShare) -> bool:
        """Whether the share's limit stays as it is once a container may have started with it."""
        return share.isolation in self.fixed(claim.enforcer)

    def refusal(self, claim: PreparedClaim) -> str:
        """Why the claim's enforcer cannot express its limits; "" if it can."""
        enforcer = self.enforcers.get(claim.enforcer)
        if enforcer is None:
            return f"enforcer {claim.enforcer!r}, expected one of {sorted(self.enforcers)}"
        try:
            enforcer.needs(claim)
        except ClaimError as error:
            return str(error)
        return ""


def first_granted(
    claim: PreparedClaim, devices: Mapping[str, Device], rules: Rules
) -> PreparedClaim:
    """The new claim with the limits that stay for good: those that cannot be lowered later.

    Such a limit is the request, since more could not be taken back for a later tenant. With
    overcommitted limits nothing is ever taken back, so it is what was asked for, within the card.

    Args:
        claim: Its limits are what it asks for.
        devices: By name; all of the claim's.
        rules: The node's.
    """
    shares = []
    for share in claim.shares:
        if share.limit is not None and rules.is_fixed(claim, share):
            device = devices[share.device]
            limit = _request(share, device)
            if rules.overcommit_limits:
                limit = _within(limit, _wanted(share), _total(device))
            share = replace(share, limit=limit)  # noqa: PLW2901
        shares.append(share)
    return replace(claim, shares=tuple(shares))


def regranted(
    claims: Sequence[PreparedClaim], devices: Mapping[str, Device], rules: Rules
) -> list[PreparedClaim]:
    """The claims, in their order, with the limits that hold while all of them are there.

    A claim whose enforcer could not express its new limits keeps the old ones, and the others
    divide what those leave.

    Args:
        claims: All claims that hold shares of these devices.
        devices: By name; shares of other devices stay as they are.
        rules: The node's.
    """
    kept: set[str] = set()
    while True:
        granted = _regranted(claims, devices, rules, kept)
        refused = {
            new.ref.uid
            for new, old in zip(granted, claims, strict=True)
            if new != old and rules.refusal(new)
        }
        if not refused:
            return granted
        kept |= refused


def _regranted(
    claims: Sequence[PreparedClaim],
    devices: Mapping[str, Device],
    rules: Rules,
    kept: AbstractSet[str],
) -> list[PreparedClaim]:
    """One division.

    Args:
        kept: UIDs of claims whose limits stay as they are.
    """
    granted: dict[tuple[str, int], Limit] = {}
    for device in devices.values():
        tenants = [
            (claim, index, share)
            for claim in sorted(claims, key=lambda claim: (claim.sequence, claim.ref.uid))
            for index, share in enumerate(claim.shares)
            if share.device == device.name and not share.admin_access
        ]
        asked = [
            _kept(share, device)
            if claim.ref.uid in kept or rules.is_fixed(claim, share)
            else _asked(share, device)
            for claim, _, share in tenants
        ]
        divided = _divided(_total(device), asked)
        if rules.overcommit_limits:
            divided = [_within(request, wanted, _total(device)) for request, wanted in asked]
        granted.update(
            ((claim.ref.uid, index), limit)
            for (claim, index, _), limit in zip(tenants, divided, strict=True)
        )
    return [_with_limits(claim, granted) for claim in claims]


def _divided(total: Limit, asked: Sequence[tuple[Limit, Limit]]) -> list[Limit]:
    """What is reserved for each, and of the rest what it wants, first come first served."""
    compute = limits.granted(
        total.sm_percent, [(each.sm_percent, want.sm_percent) for each, want in asked]
    )
    memory = limits.granted(
        total.vram_bytes, [(each.vram_bytes, want.vram_bytes) for each, want in asked]
    )
    return [
        Limit(sm_percent=part, vram_bytes=size) for part, size in zip(compute, memory, strict=True)
    ]


def _total(device: Device) -> Limit:
    """What the device's tenants divide; more than 100 percent where its pool oversubscribes."""
    tflops = capacity.in_force(device.capacity, names.CAPACITY_TFLOPS).value
    vram = capacity.in_force(device.capacity, names.CAPACITY_VRAM).value
    whole = Quantity.milli(device.gpu.milli_tflops)
    return Limit(sm_percent=100 * tflops.nano // whole.nano, vram_bytes=vram.ceil())


def _request(share: PreparedShare, device: Device) -> Limit:
    """What the scheduler has reserved for the share; no limit goes below it."""
    tflops = capacity.taken(share.consumed, names.CAPACITY_TFLOPS)
    return Limit(sm_percent=limits.percent(tflops, device.gpu), vram_bytes=share.vram_request_bytes)


def _wanted(share: PreparedShare) -> Limit:
    return Limit(sm_percent=share.wanted_sm_percent, vram_bytes=share.wanted_vram_bytes)


def _asked(share: PreparedShare, device: Device) -> tuple[Limit, Limit]:
    """What is reserved for the share, and what it wants."""
    request = _request(share, device)
    return request, request if share.limit is None else _wanted(share)


def _kept(share: PreparedShare, device: Device) -> tuple[Limit, Limit]:
    """A container may use what it was once given, be it more or less than is reserved for it."""
    limit = share.limit or _request(share, device)
    return limit, limit


def _within(request: Limit, wanted: Limit, total: Limit) -> Limit:
    """What is wanted, as far as the device has it, but no less than what is reserved."""
    return Limit(
        sm_percent=max(request.sm_percent, min(wanted.sm_percent, total.sm_percent)),
        vram_bytes=max(request.vram_bytes, min(wanted.vram_bytes, total.vram_bytes)),
    )


def _with_limits(claim: PreparedClaim, granted: Mapping[tuple[str, int], Limit]) -> PreparedClaim:
    shares = []
    for index, share in enumerate(claim.shares):
        limit = granted.get((claim.ref.uid, index))
        if limit is not None and share.limit is not None:
            share = replace(share, limit=limit)  # noqa: PLW2901
        shares.append(share)
    return replace(claim, shares=tuple(shares))
