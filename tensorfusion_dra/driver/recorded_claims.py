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
from tensorfusion_dra.core.claims.operation import Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver import operations
from tensorfusion_dra.driver.admission import Admitted
from tensorfusion_dra.driver.catalog import Catalog
from tensorfusion_dra.driver.local_cards import CardsUnreadError, LocalCards
from tensorfusion_dra.driver.projection import Projection
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
        operations.enter(Stage.LOOKUP)
        record = self._ledger.get(ref.uid)
        if record is None:
            return None
        if self._answers(record, claim, needs_present_cards=needs_present_cards):
            return record
        used = partial(self._used, ref, claim, needs_present_cards=needs_present_cards)
        try:
            return used(self._cards.catalog.current())
        except CardsUnreadError:
            operations.enter(Stage.RESOLVE)
            return used(self._cards.wait_for_catalog(ref, deadline))  # slow, so outside the step

    def write_files(self, admitted: Admitted) -> PreparedClaim:
        """Write the files of a claim that was just recorded; return its newest record.

        They are written outside a step of the ledger, so that other claims do not wait for them.
        Meanwhile a step may change the record and write its files: another claim's, or one of
        another instance. Therefore the record is compared afterwards. If it is another one by then,
        the files are written again, inside a step. So the last files are those of the last record.

        Raises:
            RetryableError: Another instance unprepared the claim meanwhile, or a file cannot be
                written.
        """
        try:
            self._projection.put(admitted.plan)
            if self._ledger.has(admitted.stored):
                return admitted.claim
        except RetryableError:
            pass  # also if another instance's recovery removed a file that was half written
        return self._project(admitted.claim)

    def _project(self, record: PreparedClaim) -> PreparedClaim:
        """Write the files of the claim's newest record inside a step, and return that record.

        Raises:
            RetryableError: See write_files().
        """
        with self._ledger.transaction() as step:
            current = step.current(record)
            if current is None:
                self._projection.remove(record.ref.uid, record)
                raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")
            self._projection.ensure(current)
        return current

    def _answers(
        self,
        record: PreparedClaim,
        claim: AllocatedClaim | None,
        *,
        needs_present_cards: bool,
    ) -> bool:
        """Return True if the record and its files are as they should be, without changing any.

        Raises:
            ClaimError: See use().
            RetryableError: See use().
        """
        if claim is not None and not confirmation.describes(record, claim):
            return False
        catalog = self._cards.catalog.current()
        if catalog is None:
            return False
        today = self._today(record, claim, catalog, needs_present_cards=needs_present_cards)
        return today == record and self._projection.is_written(record)

    def _today(
        self,
        record: PreparedClaim,
        claim: AllocatedClaim | None,
        catalog: Catalog | None,
        *,
        needs_present_cards: bool,
    ) -> PreparedClaim:
        """Return the record for the claim's present pods, with its cards' access of today.

        Raises:
            RetryableError: The cards are not known yet, or one of the claim's is gone.
        """
        if needs_present_cards:
            self._cards.check_present(record.ref, (share.device for share in record.shares))
        return self._cards.with_todays_access(_reserved(record, claim), catalog)

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
                today = self._today(record, claim, catalog, needs_present_cards=needs_present_cards)
                if today == record:
                    operations.enter(Stage.WRITE)
                    self._projection.ensure(record)
                    return record
                step.put(today)
                record = today
                operations.enter(Stage.FLUSH)
        if is_current:
            operations.enter(Stage.WRITE)
            return self._project(record)
        log.warning("claim_reallocated", devices=[share.device for share in record.shares])
        self._withdrawal.withdraw(ref)
        return None


def _reserved(record: PreparedClaim, claim: AllocatedClaim | None) -> PreparedClaim:
    """Return the record for the claim's present pods if none of those that it names is left."""
    if claim is None or {*record.pods} & {*claim.pods}:
        return record
    return replace(record, pods=(*claim.pods,))
