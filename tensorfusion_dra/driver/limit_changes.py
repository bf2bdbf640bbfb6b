"""The division of each card's memory and compute among the claims that share it.

What a claim may use depends on the other claims on its cards: unreserved memory and compute are
lent (core/claims/lending.py). So the limits of prepared claims change

- when a claim on the same card is prepared or unprepared: that transaction changes their
  records too, and write() writes their files afterwards;
- when the catalog changes, as a pool may hand out less, and once after each start, as the rules may
  have changed: run() divides all cards again.
"""

from collections.abc import Mapping, Sequence
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.enforcer import AT_ONCE
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.catalog import Catalog, DeviceCatalog
from tensorfusion_dra.driver.node_files import NodeFiles
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.runtime.loops import Backoff
from tensorfusion_dra.state.ledger import Ledger, Transaction

log = structlog.get_logger()

_WAIT_SECONDS: Final = 60.0


class LimitChanges:
    """Recomputes the limits of prepared claims."""

    def __init__(
        self,
        ledger: Ledger,
        files: NodeFiles,
        catalog: DeviceCatalog,
        *,
        rules: LendingRules,
        status: StatusReporter,
        retry_seconds: float = 1.0,
    ) -> None:
        """Divide nothing yet.

        Args:
            ledger: The claims of this node.
            files: Writes the files of claims whose limits changed.
            catalog: The cards; each change of it divides them again.
            rules: For limits above requests.
            status: Reports claims whose limits changed.
            retry_seconds: Wait after a first failure; longer after each further one.
        """
        self._ledger = ledger
        self._files = files
        self._catalog = catalog
        self._rules = rules
        self._status = status
        self._retry_seconds = retry_seconds
        self._stop = Event()

    def stop(self) -> None:
        """End run()."""
        self._stop.set()
        self._catalog.wake_waiting()

    def run(self) -> None:
        """Divide all cards at every change of the catalog, until stopped.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        seen: Catalog | None = None
        backoff = Backoff(first_seconds=self._retry_seconds, longest_seconds=_WAIT_SECONDS)
        while not self._stop.is_set():
            self._catalog.wait_changed(seen, seconds=_WAIT_SECONDS, stopped=self._stop.is_set)
            current = self._catalog.current()
            if current is None or current is seen:
                continue
            try:
                self.divide()
            except RetryableError as error:
                log.warning("limits_recompute_failed", error=str(error))
                self._stop.wait(backoff.failed())
            else:
                backoff.succeeded()
                seen = current

    def divide(self) -> Sequence[PreparedClaim]:
        """Recompute the limits of all claims; return those that changed, the only ones written.

        Raises:
            RetryableError: The ledger cannot be read or written now.
            FatalError: A newer release has changed the ledger.
        """
        catalog = self._catalog.current()
        if catalog is None:
            return ()
        devices = catalog.by_name()
        with self._ledger.transaction() as transaction:
            changed = self._changed(transaction.claims_on(devices), devices)
            for record in changed:
                transaction.put(record)
        if not changed:
            return ()
        log.info("limits_recomputed", claims=len(changed))
        self.write(changed)
        return changed

    def remove(self, transaction: Transaction, gone: PreparedClaim) -> Sequence[PreparedClaim]:
        """Remove a claim from the ledger; return the claims whose limits grow by that.

        Their new records are put, but their files are not written yet.
        """
        transaction.remove(gone.ref.uid)
        catalog = self._catalog.current()
        if catalog is None:  # the first one divides all cards
            return ()
        left = {share.device for share in gone.shares}
        devices = {name: card for name, card in catalog.by_name().items() if name in left}
        beside = transaction.claims_on(devices)
        if not any(share.clamped for claim in beside for share in claim.shares):
            return ()  # nobody wants more than it has
        grown = self._changed(beside, devices)
        for record in grown:
            transaction.put(record)
        return grown

    def write(self, changed: Sequence[PreparedClaim]) -> None:
        """Write the files of prepared claims whose limits changed; have the limits follow at once.

        What an enforcer cannot do at once follows later, so that no other claim waits for it.
        """
        for record in changed:
            with self._ledger.transaction() as transaction:
                # By now it may be unprepared, or changed once more.
                current = transaction.current(record)
                if current is None:
                    continue
                try:
                    self._files.ensure(current)
                    self._status.report(current, trouble="")
                except (ClaimError, RetryableError) as error:
                    # The claim's own next call, or recovery, writes them.
                    log.warning("limits_update_failed", claim=str(record.ref), error=str(error))
                    continue
            try:
                enforcer = self._rules.enforcers[current.enforcer]
                enforcer.apply(current, self._ledger.claims, AT_ONCE)
            except (ClaimError, RetryableError) as error:
                log.warning("limits_update_failed", claim=str(record.ref), error=str(error))

    def _changed(
        self, claims: Sequence[PreparedClaim], devices: Mapping[str, Device]
    ) -> Sequence[PreparedClaim]:
        """Return the new record of each claim whose limits change."""
        divided = lending.with_divided_limits(claims, devices, self._rules)
        return [new for old, new in zip(claims, divided, strict=True) if new is not old]
