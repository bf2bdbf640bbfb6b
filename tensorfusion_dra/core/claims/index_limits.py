"""Limits by the index of a card in the container, for limiters that do not know GPU UUIDs."""

from collections.abc import Iterable, Sequence

from tensorfusion_dra.core.claims import enforcer
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare, by_uuid
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import MIB


def limits(shares: Iterable[PreparedShare]) -> tuple[Limit, ...]:
    """Return a limit for each card of a request, at the card's index; empty if no share has one.

    The cards are in the order of their PCI bus IDs, because that is how CUDA numbers them in the
    container (CUDA_DEVICE_ORDER). Several shares of a card add up. Memory is whole MiB. If only
    some cards have a limit, the others get the smallest one: a limited container has no unlimited
    card.
    """
    every = tuple(shares)
    known = by_uuid(every)
    if not known:
        return ()
    least = smallest(tuple(known.values()))
    return tuple(_whole_mib(known.get(card, least)) for card in cards(every))


def cards(shares: Iterable[PreparedShare]) -> Sequence[str]:
    """Return the UUIDs of a request's cards, each at its index; see limits()."""
    return [*dict.fromkeys(share.gpu_uuid for share in sorted(shares, key=_bus))]


def smallest(known: Sequence[Limit]) -> Limit:
    """Return the smallest compute and the smallest memory of these limits."""
    least = Limit(
        sm_percent=min(limit.sm_percent for limit in known),
        vram_bytes=min(limit.vram_bytes for limit in known),
    )
    return _whole_mib(least)


def check(claim: PreparedClaim) -> None:
    """Refuse a claim if an index in one of its containers could select another card's limit.

    A container uses one request of its claim or all of them, and nothing in the claim shows which.
    With all of them it has the variables of every request, of which the last with the same name
    wins, and the cards of the other requests shift its indexes. That is harmless only while all
    limits are equal. If two requests have a share of the same card, such a container gets the
    limit of one of them, not the sum.

    Two claims in one container are a separate check: see core.kubernetes.resource_claims.

    Raises:
        ClaimError: Limits differ between requests, or between cards whose order is unknown.
    """
    by_request = {request: limits(shares) for request, shares in enforcer.enforced(claim).items()}
    if len({limit for each in by_request.values() for limit in each}) < 2:
        return
    if len({share.request for share in claim.shares}) > 1:
        shown = "; ".join(f"{request}: {_shown(each)}" for request, each in by_request.items())
        raise ClaimError(
            f"claim {claim.ref}: found different limits in its requests ({shown}), expected equal "
            "ones, because a container may use all requests; use one claim for each"
        )
    unknown = [share.device for share in claim.shares if not share.pci_bus_id]
    if unknown:
        raise ClaimError(
            f"claim {claim.ref}: found different limits and no PCI bus id of {unknown[0]}, "
            "expected the bus id of each card"
        )


def _bus(share: PreparedShare) -> tuple[int, ...]:
    """Return a key that sorts bus IDs as numbers: domains differ in their number of digits."""
    return tuple(int(part, 16) for part in share.pci_bus_id.replace(".", ":").split(":") if part)


def _whole_mib(limit: Limit) -> Limit:
    """Round memory down to whole MiB, but not below 1, since limiters take 0 for no limit."""
    return Limit(sm_percent=limit.sm_percent, vram_bytes=max(1, limit.vram_bytes // MIB) * MIB)


def _shown(each: Iterable[Limit]) -> str:
    return ", ".join(f"{limit.sm_percent}% {limit.vram_bytes // MIB}Mi" for limit in each) or "none"
