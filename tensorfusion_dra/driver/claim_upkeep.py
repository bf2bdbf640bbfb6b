"""Upkeep of prepared claims: files, limits and statuses follow the records.

The store computes what a claim may use from all claims on its cards (core/claims/lending.py). So a
record changes when its claim is prepared, and its limits change

- when a claim on the same card is prepared or unprepared: that transaction knows which ones, and
  follow() has their files, enforcers and statuses follow;
- when the catalog changes, as a pool may hand out less: LimitChanges records what the cards have
  now.

After a start with other rules, recovery has the files follow (recover.py).

No lock is held for this, so several threads, and another instance, may write for one claim at the
same time, one of them by an older record. Therefore each reads the record again once it has
written, and starts again if the record is another one by then. Whoever writes last has read the
newest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core.claims import lending
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import ClaimRef
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


class Upkeep:
    """Has everything follow the records; safe for all threads."""

    def __init__(
        self,
        store: ClaimStore,
        files: NodeFiles,
        enforcers: Mapping[str, Enforcer],
        status: StatusReporter,
    ) -> None:
        self._store = store
        self._files = files
        self._enforcers = enforcers
        self._status = status

    def write(self, record: PreparedClaim) -> None:
        """Write the claim's files where they differ.

        Raises:
            ClaimError: See NodeFiles.ensure().
            RetryableError: See NodeFiles.ensure().
        """
        self._files.ensure(record)

    def report(self, record: PreparedClaim) -> PreparedClaim:
        """Report a record whose files are written in the claim's status; return the newest record.

        Raises:
            ClaimError: See NodeFiles.ensure().
            RetryableError: The claim was unprepared meanwhile, or a file cannot be written.
        """
        written: PreparedClaim | None = record
        while written is not None:
            self._status.report(written, reason="")
            newest = self._store.get(record.ref.uid)
            if newest == written:
                return written
            if newest is not None:
                self._files.ensure(newest)
            written = newest
        self.remove(record.ref, record)
        raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")

    def follow(self, changed: Sequence[PreparedClaim]) -> None:
        """Have files, enforcers and statuses follow the records of claims whose limits changed.

        What an enforcer cannot do at once follows later, so that no other claim waits for it. What
        fails is logged: the claim's own next call, or recovery, does it.
        """
        for record in changed:
            try:
                self._files.ensure(record)
                newest = self.report(record)
                self._enforcers[newest.enforcer].apply(newest, self._store.claims, AT_ONCE)
            except (ClaimError, RetryableError) as error:
                log.warning("limits_update_failed", claim=str(record.ref), error=str(error))

    def remove(
        self,
        ref: ClaimRef,
        record: PreparedClaim | None,
        recorded: Callable[[], Sequence[PreparedClaim]] = tuple,
    ) -> None:
        """Remove what follows from a record, whether or not there is one.

        Raises:
            RetryableError: A folder cannot be written.
        """
        self._files.remove(ref.uid, record, recorded=recorded)
        self._status.forget(ref.uid)

    def with_remains(self, facts: ClaimFacts, ref: ClaimRef) -> ClaimFacts:
        """Return the facts of a claim whose record is damaged, with what its files still say.

        Its containers were started with these limits, under this enforcer.
        """
        remains = self._files.remains(ref.uid)
        if remains is None or remains.enforcer not in self._enforcers:
            return facts
        return replace(facts, enforcer=remains.enforcer, shown=remains.limits)


class LimitChanges:
    """Loop that divides the cards again at every change of the catalog."""

    def __init__(
        self,
        store: ClaimStore,
        catalog: DeviceCatalog,
        upkeep: Upkeep,
        *,
        retry_seconds: float = 1.0,
    ) -> None:
        """Args:
        store: The claims of this node.
        catalog: The cards.
        upkeep: Has everything follow the changed limits.
        retry_seconds: Wait after a first failure; longer after each further one.
        """
        self._store = store
        self._catalog = catalog
        self._upkeep = upkeep
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
            self._upkeep.follow(changed)
        return changed
