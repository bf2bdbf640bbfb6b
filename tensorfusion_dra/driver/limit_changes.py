"""What follows from changed limits: the files, the hypervisor's limits and the statuses of claims.

The store computes what a claim may use from all claims on its cards (core/claims/lending.py). So
the limits of prepared claims change

- when a claim on the same card is prepared or unprepared: that transaction knows which ones, and
  write() has their files follow;
- when the catalog changes, as a pool may hand out less: run() records what the cards have now.

After a start with other rules, recovery has the files follow (recover.py).
"""

from collections.abc import Mapping, Sequence
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.enforcer import AT_ONCE, Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.node_files import NodeFiles
from tensorfusion_dra.driver.publish import Catalog, DeviceCatalog
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.runtime.loops import Backoff
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()

_WAIT_SECONDS: Final = 60.0


class LimitChanges:
    """Recomputes the limits of prepared claims."""

    def __init__(
        self,
        store: ClaimStore,
        files: NodeFiles,
        catalog: DeviceCatalog,
        *,
        enforcers: Mapping[str, Enforcer],
        status: StatusReporter,
        retry_seconds: float = 1.0,
    ) -> None:
        """Divide nothing yet.

        Args:
            store: The claims of this node.
            files: Writes the files of claims whose limits changed.
            catalog: The cards; each change of it divides them again.
            enforcers: By name; each has its limits follow.
            status: Reports claims whose limits changed.
            retry_seconds: Wait after a first failure; longer after each further one.
        """
        self._store = store
        self._files = files
        self._catalog = catalog
        self._enforcers = enforcers
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
            FatalError: A newer release has written a record.
        """
        seen: Catalog | None = None
        backoff = Backoff(first_seconds=self._retry_seconds, longest_seconds=_WAIT_SECONDS)
        while not self._stop.is_set():
            current = self._catalog.wait_changed(
                seen, seconds=_WAIT_SECONDS, stopped=self._stop.is_set
            )
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
        """Divide the cards as they were read last; return the claims whose limits changed.

        Raises:
            RetryableError: The store cannot be read or written now.
            FatalError: A newer release has written a record.
        """
        catalog = self._catalog.current()
        if catalog is None:
            return ()
        devices = catalog.by_name()
        with self._store.transaction() as records:
            for record in records.claims():
                today = lending.with_totals(record, devices)
                if today != record:
                    records.put(today)
        changed = records.changed()
        if changed:
            log.info("limits_recomputed", claims=len(changed))
            self.write(changed)
        return changed

    def write(self, changed: Sequence[PreparedClaim]) -> None:
        """Write the files of prepared claims whose limits changed; have the limits follow at once.

        What an enforcer cannot do at once follows later, so that no other claim waits for it.
        """
        for record in changed:
            with self._store.transaction() as records:
                # By now it may be unprepared, or changed once more.
                current = records.get(record.ref.uid)
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
                enforcer = self._enforcers[current.enforcer]
                enforcer.apply(current, self._store.claims, AT_ONCE)
            except (ClaimError, RetryableError) as error:
                log.warning("limits_update_failed", claim=str(record.ref), error=str(error))
