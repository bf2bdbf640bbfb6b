"""Limits by the index that CUDA gives a card in a container, for limiters that know no UUIDs."""

from collections.abc import Iterable, Sequence

from tensorfusion_dra.core.claims.enforcers import enforcer
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import MIB


def limits(shares: Iterable[PreparedShare]) -> tuple[Limit, ...]:
    """The limit of each card of a request's containers, at the card's index; none if none has one.

    The cards are in the order of their PCI bus ids, because the containers count them so
    (CUDA_DEVICE_ORDER). Several shares of a card add up. Memory is whole MiB. A card without a
    limit beside cards with one gets the smallest: nothing in a limited container is unlimited.
    """
    by_card: dict[str, Limit | None] = {}
    for share in sorted(shares, key=_bus):
        by_card[share.gpu_uuid] = _sum(by_card.get(share.gpu_uuid), share.limit)
    known = [limit for limit in by_card.values() if limit is not None]
    if not known:
        return ()
    least = smallest(known)
    return tuple(least if limit is None else _whole_mib(limit) for limit in by_card.values())


def smallest(known: Sequence[Limit]) -> Limit:
    """What every one of these limits allows."""
    least = Limit(
        sm_percent=min(limit.sm_percent for limit in known),
        vram_bytes=min(limit.vram_bytes for limit in known),
    )
    return _whole_mib(least)


def check(claim: PreparedClaim) -> None:
    """Refuses a claim in one of whose containers an index could mean another card's limit.

    A container uses one request of its claim or all of them, and nobody says which. With all of
    them it has every request's variables, of which the last of a name wins, and the cards of
    the other requests shift its indexes. That is harmless only while all limits are equal. Of
    the limits of a card in two requests such a container gets one and not the sum.

    Two claims in one container are refused before: see core.admission.companions.

    Raises:
        ClaimError: Limits differ between requests, or between cards whose order is unknown.
    """
    by_request = {request: limits(shares) for request, shares in enforcer.enforced(claim).items()}
    if len({limit for each in by_request.values() for limit in each}) < 2:
        return
    if len({share.request for share in claim.shares}) > 1:
        told = "; ".join(f"{request}: {_told(each)}" for request, each in by_request.items())
        raise ClaimError(
            f"claim {claim.ref}: found different limits in its requests ({told}), expected equal "
            "ones, because a container may use all requests; use one claim for each"
        )
    unknown = [share.device for share in claim.shares if not share.pci_bus_id]
    if unknown:
        raise ClaimError(
            f"claim {claim.ref}: found different limits and no PCI bus id of {unknown[0]}, "
            "expected one of each card"
        )


def _bus(share: PreparedShare) -> tuple[int, ...]:
    """Orders bus ids as numbers: not every domain has the same number of digits."""
    return tuple(int(part, 16) for part in share.pci_bus_id.replace(".", ":").split(":") if part)


def _sum(first: Limit | None, second: Limit | None) -> Limit | None:
    if first is None or second is None:
        return first or second
    return Limit(
        sm_percent=min(100, first.sm_percent + second.sm_percent),
        vram_bytes=first.vram_bytes + second.vram_bytes,
    )


def _whole_mib(limit: Limit) -> Limit:
    """At least one, since limiters take 0 for no limit."""
    mib = max(1, limit.vram_bytes // MIB)
    return Limit(sm_percent=limit.sm_percent, vram_bytes=mib * MIB)


def _told(each: Iterable[Limit]) -> str:
    return ", ".join(f"{limit.sm_percent}% {limit.vram_bytes // MIB}Mi" for limit in each) or "none"
