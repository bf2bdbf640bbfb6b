"""Admission by sums: fit() for claims that fit and change no other claim.

The rules are those of fit(). They are checked against the sums of each card (tenants.py), so the
time does not depend on the number of claims. If the sums leave any doubt, the answer is None, and
fit() decides from the records; its errors name the claims that are in the way.

Example: on a card with 80Gi, tenants have requests of 50Gi. A claim for 20Gi is admitted here. For
a claim for 40Gi the answer is None, and fit() refuses it.
"""

from collections.abc import Sequence
from dataclasses import replace

from tensorfusion_dra.core.claims import fit, tenancy
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.fit import NodeOffer
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.claims.tenants import NodeTenants
from tensorfusion_dra.core.devices.device import Device


class _UndecidedError(Exception):
    """The sums do not tell whether a share fits."""


def quick_fit(
    claim: AllocatedClaim,
    policies: Sequence[SharePolicy],
    offer: NodeOffer,
    tenants: NodeTenants,
) -> PreparedClaim | None:
    """Return the record of a claim that fits and changes no other; None if fit() has to decide.

    Args:
        claim: The allocated claim; it has no record yet.
        policies: One for each of its allocations.
        offer: This node.
        tenants: Of the same devices.

    Raises:
        ClaimError: See fit(); never because of another claim.
    """
    seen: set[str] = set()

    def check(share: PreparedShare, device: Device, _own: Sequence[PreparedShare]) -> None:
        card = tenants.cards.get(device.name)
        # A second share of a card would have to fit beside the first one, too.
        if card is None or device.name in seen or not card.has_room(share):
            raise _UndecidedError
        seen.add(device.name)

    try:
        shares = fit.checked_shares(claim, policies, offer, check)
    except _UndecidedError:
        return None
    last = max((tenants.cards[name].sequence for name in seen), default=0)
    record = fit.first_record(claim, shares, offer, sequence=last + 1)
    return _with_limits(record, offer, tenants)


def _with_limits(
    record: PreparedClaim, offer: NodeOffer, tenants: NodeTenants
) -> PreparedClaim | None:
    """Return the record with the limits that its cards have left; None if others would change."""
    shares = []
    for share in record.shares:
        if share.admin_access:
            shares.append(share)
            continue
        request, wanted = tenancy.demand(record, share, offer.devices[share.device], offer.rules)
        limit = tenants.cards[share.device].grant(request, wanted, offer.rules)
        if limit is None:
            return None
        is_new = share.limit is not None and share.limit != limit
        shares.append(replace(share, limit=limit) if is_new else share)
    if all(new is old for new, old in zip(shares, record.shares, strict=True)):
        return record
    limited = replace(record, shares=tuple(shares))
    # Its enforcer cannot express the limits. Then it keeps its own, and other claims get less.
    return None if offer.rules.refusal(limited) else limited
