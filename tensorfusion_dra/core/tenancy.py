"""How the tenants of one card divide its memory beyond what each has reserved."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tensorfusion_dra.core import capacity, limits, names
from tensorfusion_dra.core.device import Device
from tensorfusion_dra.core.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.share_parameters import Isolation


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
            size = share.vram_request_bytes
            if rules.overcommit_limits:
                size = max(size, min(share.wanted_vram_bytes, _vram_bytes(devices[share.device])))
            share = replace(share, limit=replace(share.limit, vram_bytes=size))  # noqa: PLW2901
        shares.append(share)
    return replace(claim, shares=tuple(shares))


def regranted(
    claims: Sequence[PreparedClaim], devices: Mapping[str, Device], rules: Rules
) -> list[PreparedClaim]:
    """The claims, in their order, with the memory limits that hold while all of them are there.

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
    granted: dict[tuple[str, int], int] = {}
    for device in devices.values():
        tenants = [
            (claim, index, share)
            for claim in sorted(claims, key=lambda claim: (claim.sequence, claim.ref.uid))
            for index, share in enumerate(claim.shares)
            if share.device == device.name and not share.admin_access
        ]
        total = _vram_bytes(device)
        asked = [
            _kept(share) if claim.ref.uid in kept or rules.is_fixed(claim, share) else _asked(share)
            for claim, _, share in tenants
        ]
        memory = limits.granted(total, asked)
        if rules.overcommit_limits:
            memory = [max(request, min(wanted, total)) for request, wanted in asked]
        granted.update(
            ((claim.ref.uid, index), size)
            for (claim, index, _), size in zip(tenants, memory, strict=True)
        )
    return [_with_limits(claim, granted) for claim in claims]


def _vram_bytes(device: Device) -> int:
    return capacity.in_force(device.capacity, names.CAPACITY_VRAM).value.ceil()


def _asked(share: PreparedShare) -> tuple[int, int]:
    """What is reserved for the share, and what it wants."""
    request = share.vram_request_bytes
    return request, request if share.limit is None else share.wanted_vram_bytes


def _kept(share: PreparedShare) -> tuple[int, int]:
    """A container may use what it was once given, be it more or less than is reserved for it."""
    request = share.vram_request_bytes
    size = request if share.limit is None else share.limit.vram_bytes
    return size, size


def _with_limits(claim: PreparedClaim, granted: Mapping[tuple[str, int], int]) -> PreparedClaim:
    shares = []
    for index, share in enumerate(claim.shares):
        size = granted.get((claim.ref.uid, index))
        if size is not None and share.limit is not None:
            share = replace(share, limit=replace(share.limit, vram_bytes=size))  # noqa: PLW2901
        shares.append(share)
    return replace(claim, shares=tuple(shares))
