"""Claims that are prepared already: their records answer a repeated call.

A record answers as it is if nothing changed. It is renewed if the node was rebooted, because a card
may have other device nodes now, or if other pods use the claim. It is withdrawn if the claim was
allocated anew: the scheduler has given the old share back, and the kubelet will not unprepare it.
"""

from dataclasses import replace
from functools import partial

import structlog

from tensorfusion_dra.core.claims import confirmation
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import Catalog
from tensorfusion_dra.driver.local_cards import CardsUnreadError, LocalCards
from tensorfusion_dra.driver.projection import Plan, Projection
from tensorfusion_dra.driver.withdraw import Withdrawal
from tensorfusion_dra.state.ledger import Ledger

log = structlog.get_logger()


class RecordedClaims:
    """The records of this node, for callers that hold a claim's lock."""

    def __init__(
        self, ledger: Ledger, projection: Projection, cards: LocalCards, withdrawal: Withdrawal
    ) -> None:
        self._ledger = ledger
        self._projection = projection
        self._cards = cards
        self._withdrawal = withdrawal

    def use(
        self,
        ref: ClaimRef,
        claim: AllocatedClaim | None,
        deadline: float,
        *,
        needs_present_cards: bool = True,
    ) -> PreparedClaim | None:
        """Return the claim's record, with its files written; None if there is none to use.

        Args:
            ref: The claim.
            claim: As read from the API server; None if the record needs no confirmation.
            deadline: On time.monotonic()'s clock.
            needs_present_cards: Fail if one of the claim's cards is absent.

        Raises:
            ClaimError: Its limits cannot be enforced by the settings of today.
            RetryableError: The cards are not known yet, or one of the claim's is gone.
            FatalError: A newer release has changed the ledger.
        """
        if claim is not None and not self._ledger.has(ref.uid):
            return None  # as for most claims that were just read: without a step of the ledger
        used = partial(self._used, ref, claim, needs_present_cards=needs_present_cards)
        try:
            return used(self._cards.catalog.current())
        except CardsUnreadError:
            return used(self._cards.wait_for_catalog(ref, deadline))  # slow, so outside the step

    def project(self, record: PreparedClaim, plan: Plan | None = None) -> PreparedClaim:
        """Write the files of the claim's newest record, and return that record.

        Another claim's step may have changed it since it was put.

        Args:
            record: As put.
            plan: For this record; None makes one.

        Raises:
            RetryableError: Another instance unprepared the claim meanwhile, or a file cannot be
                written.
        """
        with self._ledger.transaction() as step:
            current = step.current(record)
            if current is None:
                raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")
            if current is record and plan is not None:
                self._projection.write(plan)
            else:
                self._projection.ensure(current)
        return current

    def _used(
        self,
        ref: ClaimRef,
        claim: AllocatedClaim | None,
        catalog: Catalog | None,
        *,
        needs_present_cards: bool,
    ) -> PreparedClaim | None:
        with self._ledger.transaction() as step:
            record = step.get(ref.uid)
            if record is None:
                return None
            is_current = claim is None or confirmation.describes(record, claim)
            if is_current:
                if needs_present_cards:
                    self._cards.check_present(ref, (share.device for share in record.shares))
                today = self._cards.with_todays_access(_reserved(record, claim), catalog)
                if today == record:
                    self._projection.ensure(record)
                    return record
                step.put(today)
                record = today
        if is_current:
            return self.project(record)
        log.warning("claim_reallocated", devices=[share.device for share in record.shares])
        self._withdrawal.withdraw(ref)
        return None


def _reserved(record: PreparedClaim, claim: AllocatedClaim | None) -> PreparedClaim:
    """Return the record for the claim's present pods if none of those that it names is left."""
    if claim is None or {*record.pods} & {*claim.pods}:
        return record
    return replace(record, pods=(*claim.pods,))
