"""How the tenants of one card divide its memory beyond what each has reserved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorfusion_dra.core import capacity, limits, names
from tensorfusion_dra.core.device import Device
from tensorfusion_dra.core.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.share_parameters import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The node's rules for limits above requests.

    Attributes:
        overcommit_limits: Limits may add up to more than the card has; no single one exceeds it.
        fixed: Isolation modes in which a running container's limit cannot be lowered. There a
            limit above the request could not be taken back for a later tenant, so none is
            granted.
    """

    overcommit_limits: bool = False
    fixed: frozenset[Isolation] = frozenset()


def regranted(
    claims: Sequence[PreparedClaim], devices: Mapping[str, Device], rules: Rules
) -> list[PreparedClaim]:
    """The claims, in their order, with the memory limits that hold while all of them are there.

    Args:
        claims: All claims that hold shares of these devices.
        devices: By name; shares of other devices stay as they are.
        rules: The node's.
    """
    granted: dict[tuple[str, int], int] = {}
    for device in devices.values():
        tenants = [
            (claim.ref.uid, index, share)
            for claim in sorted(claims, key=lambda claim: (claim.sequence, claim.ref.uid))
            for index, share in enumerate(claim.shares)
            if share.device == device.name and not share.admin_access
        ]
        total = capacity.in_force(device.capacity, names.CAPACITY_VRAM).value.ceil()
        asked = [(share.vram_request_bytes, _wanted(share, rules)) for _, _, share in tenants]
        memory = limits.granted(total, asked)
        if rules.overcommit_limits:
            memory = [max(request, min(wanted, total)) for request, wanted in asked]
        granted.update(
            ((uid, index), size) for (uid, index, _), size in zip(tenants, memory, strict=True)
        )
    return [_with_limits(claim, granted) for claim in claims]


def _wanted(share: PreparedShare, rules: Rules) -> int:
    if share.limit is None:
        return share.vram_request_bytes
    if share.isolation in rules.fixed and not rules.overcommit_limits:
        return share.vram_request_bytes
    return share.wanted_vram_bytes


def _with_limits(claim: PreparedClaim, granted: Mapping[tuple[str, int], int]) -> PreparedClaim:
    shares = []
    for index, share in enumerate(claim.shares):
        size = granted.get((claim.ref.uid, index))
        if size is not None and share.limit is not None:
            share = replace(share, limit=replace(share.limit, vram_bytes=size))  # noqa: PLW2901
        shares.append(share)
    return replace(claim, shares=tuple(shares))
