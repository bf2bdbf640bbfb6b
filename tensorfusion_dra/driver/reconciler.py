"""Keeps the ledger, and all that follows from it, right while the node runs."""

import math
import random
import time
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver import recover
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.ports.cluster import Events
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.recover import RecoveryReport
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.state.ledger import Ledger

log = structlog.get_logger()

LEDGER_SET_ASIDE: Final = "LedgerSetAside"
"""Reason of the Event that says so."""

_FIRST_RETRY_SECONDS: Final = 1.0
"""After a reboot the cards are known within seconds."""


class Reconciler:
    """Looks at everything at the start and at times after it."""

    def __init__(
        self, ledger: Ledger, projection: Projection, *, boot_id: str, seconds: float
    ) -> None:
        """Looks at nothing yet.

        Args:
            seconds: Between two looks.
        """
        self._ledger = ledger
        self._projection = projection
        self._boot_id = boot_id
        self._seconds = seconds
        self._stop = Event()
        # Of one thread at a time, first the starting one and then run()'s:
        self._found = RecoveryReport()
        self._throttle = LogThrottle(quiet_seconds=math.inf)
        self._untold: list[str] = []
        self._shown: set[str] = set()  # UIDs of claims whose status shows a trouble

    def begin(self) -> None:
        """The look at the start, before the kubelet can call; without the API server.

        Raises:
            RetryableError: The ledger cannot be read now.
            FatalError: A newer release has changed the ledger.
        """
        self._found = recover.recover(self._ledger, self._projection, boot_id=self._boot_id)
        self._tell(self._found, always=True)

    def stop(self) -> None:
        """Ends run()."""
        self._stop.set()

    def run(self, preparer: Preparer, stale_claims: StaleClaimCollector, events: Events) -> None:
        """Looks until stopped.

        Args:
            events: Of this thread alone.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        backoff = Backoff(first_seconds=_FIRST_RETRY_SECONDS, longest_seconds=self._seconds)
        # After a rolling update not all nodes ask at the same moment.
        ask_at = time.monotonic() + random.uniform(0, self._seconds)  # noqa: S311 - spreads load
        while True:
            self._show(preparer)
            outdated = self._refresh(preparer)
            damaged = self._note_damage(stale_claims)
            if damaged or time.monotonic() >= ask_at:
                self._ask(stale_claims, events)
                ask_at = time.monotonic() + self._seconds
            wait_seconds = self._seconds
            if outdated:
                wait_seconds = backoff.failed()
            else:
                backoff.succeeded()
            if self._stop.wait(min(wait_seconds, max(0.0, ask_at - time.monotonic()))):
                return
            self._look()

    def _look(self) -> None:
        try:
            self._ledger.check()
            self._found = recover.recover(self._ledger, self._projection, boot_id=self._boot_id)
        except RetryableError as error:
            log.warning("recovery_retried", error=str(error))
            return
        self._tell(self._found)

    def _show(self, preparer: Preparer) -> None:
        """Show at each claim why its limits cannot be enforced, and take it back once they can."""
        unenforceable = {record.ref.uid: record for record in self._found.unenforceable}
        for uid, record in unenforceable.items():
            preparer.show_trouble(record, self._found.troubles[uid])
        for record in self._found.claims:
            if record.ref.uid in self._shown - unenforceable.keys():
                preparer.show_trouble(record, "")
        self._shown = set(unenforceable)

    def _refresh(self, preparer: Preparer) -> list[str]:
        """Redoes what a reboot undid; why it cannot be done yet, for each such claim."""
        errors = []
        for ref in self._found.outdated:
            try:
                preparer.refresh(ref, deadline=time.monotonic())
            except ClaimError:
                continue  # it has today's access now, and the next round says what is wrong
            except RetryableError as error:
                errors.append(str(error))
        if errors:
            log.warning("claim_refresh_failed", claims=len(errors), error=errors[0])
        elif self._found.outdated:
            log.info("claims_refreshed", claims=len(self._found.outdated))
        self._found.outdated.clear()
        return errors

    def _note_damage(self, stale_claims: StaleClaimCollector) -> bool:
        damage = self._ledger.damage()
        for each in damage:
            stale_claims.ask_first(each.rebuilt)
            if each.quarantined:
                self._untold.append(
                    f"the ledger of prepared claims was damaged ({each.reason}) and lies as "
                    f"{each.quarantined}; a new one has the {len(each.rebuilt)} claims of which "
                    f"there were copies; copies that were damaged: {len(each.lost)}"
                )
        return bool(damage)

    def _ask(self, stale_claims: StaleClaimCollector, events: Events) -> None:
        self._untold = [text for text in self._untold if not events.warn(LEDGER_SET_ASIDE, text)]
        try:
            stale_claims.look([*self._found.claims, *self._found.unknown])
        except RetryableError as error:
            log.warning("claim_confirmation_failed", error=str(error))

    def _tell(self, found: RecoveryReport, *, always: bool = False) -> None:
        for uid, trouble in found.troubles.items():
            if self._throttle.is_new(trouble, key=uid):
                log.warning("claim_recovery_failed", claim_uid=uid, error=trouble)
        self._throttle.keep_only(found.troubles)
        if always or found.files_written or found.claims_removed:
            log.info(
                "recovered",
                claims=len(found.claims),
                files_written=found.files_written,
                claims_removed=found.claims_removed,
                rebooted=len(found.outdated),
            )
