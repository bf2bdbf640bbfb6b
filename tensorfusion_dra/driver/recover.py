"""Reconciliation of records with the claims' files and the API server, while the node runs.

The records are the truth for the files: CDI specs and limits documents are rebuilt from them. The
API server is the truth for the claims: a record whose claim is gone is released, and a damaged
record is rebuilt from its claim.

begin() runs the first recovery, before the kubelet can call and without the API server. Then run()
repeats these steps:

1. Show in the status of each claim whether its limits can be enforced by the present settings, and
   what its limits are if its files were written.
2. Refresh the records of an earlier boot: their cards may have other device nodes now. That needs
   the cards, so it is retried with growing delays until they have been read.
3. Once per interval, or at once if a record is damaged: write the Events that are due and collect
   stale claims (stale_claims.py). Only this step needs the API server.
4. Wait, then check the files of the records and run the next recovery, see recover().

A step that fails is logged and repeated in the next round.

Example: a node reboots with the claim `a` prepared. The CDI folder is empty now, and the record of
`a` has the boot ID of the earlier boot. begin() therefore writes no spec for `a`, since its device
nodes may be another card's. Three seconds later NVML has listed the cards. The next refresh stores
the new device nodes in the record and writes the spec. If the kubelet prepares `a` earlier, that
call does the same.
"""

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.lending import Devices
from tensorfusion_dra.core.claims.ports import Events
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.observed import StoreView
from tensorfusion_dra.driver.claim_upkeep import NodeFiles
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()


_FIRST_RETRY_SECONDS: Final = 1.0
"""First delay of a refresh; after a reboot the cards can be read within seconds."""


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """Result of one round of recovery.

    Attributes:
        claims: All records.
        damaged: Devices of the claims whose records are damaged or missing, by UID.
        files_written: Number of files that were missing or damaged.
        rewritten: Records of claims with such files; they may show other limits than before.
        claims_removed: Number of claims without a record whose leftover files were removed.
        outdated: Claims whose record has the device nodes of another boot. Their files are left
            alone until the record is refreshed.
        unknown: Claims without a readable record whose files name the claim. The files are left
            alone: the claim may still be allocated to this node.
        reasons: Error texts by claim UID; an error of no single claim has the key "".
        unenforceable: Records whose limits the present settings cannot enforce; the error of each
            is among the reasons.
        left: Why removed folders cannot be deleted; no claim needs them.
    """

    claims: list[PreparedClaim] = field(default_factory=list)
    damaged: Mapping[str, Devices] = field(default_factory=dict)
    files_written: int = 0
    rewritten: list[PreparedClaim] = field(default_factory=list)
    claims_removed: int = 0
    outdated: list[ClaimRef] = field(default_factory=list)
    unknown: list[ClaimRef] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    unenforceable: list[PreparedClaim] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Reconciler:
    """Loop that reconciles records, files and API server."""

    def __init__(
        self, store: ClaimStore, files: NodeFiles, *, boot_id: str, seconds: float
    ) -> None:
        """Args:
        store: The claims of this node.
        files: Writes and removes the claims' files.
        boot_id: ID of this boot.
        seconds: Interval between two rounds.
        """
        self._store = store
        self._files = files
        self._boot_id = boot_id
        self._seconds = seconds
        self._stop = Event()
        # Used by one thread at a time: first the one that calls begin(), then run()'s.
        self._found = RecoveryReport()
        self._throttle = LogThrottle(quiet_seconds=math.inf)
        self._pending_events: list[str] = []  # texts about damaged records
        self._reported: set[str] = set()  # UIDs of claims whose status shows a reason

    def begin(self) -> None:
        """Run the first recovery, before the kubelet can call; without the API server.

        Raises:
            RetryableError: The store cannot be read now.
            FatalError: A newer release has written a record.
        """
        self._found = recover(self._store, self._files, boot_id=self._boot_id)
        self._log_recovery(self._found, always=True)

    def view(self) -> StoreView:
        """Return the damage to records: repaired since this process started, and left."""
        return StoreView(restored=self._store.restored, damaged=len(self._found.damaged))

    def stop(self) -> None:
        """End run()."""
        self._stop.set()

    def run(
        self,
        preparer: Preparer,
        status: StatusReporter,
        stale_claims: StaleClaimCollector,
        events: Events,
    ) -> None:
        """Reconcile until stopped.

        Args:
            preparer: Refreshes records.
            status: Shows why the limits of claims are not enforced.
            stale_claims: For this loop's thread only.
            events: Writer for this loop's thread only.

        Raises:
            FatalError: A newer release has written a record.
        """
        backoff = Backoff(first_seconds=_FIRST_RETRY_SECONDS, longest_seconds=self._seconds)
        # Random, so that not all nodes call the API server at the same moment after an update.
        collect_at = time.monotonic() + random.uniform(0, self._seconds)  # noqa: S311 - spreads load
        while True:
            self._show_reasons(status)
            outdated = self._refresh(preparer)
            self._note_damage()
            if self._found.damaged or time.monotonic() >= collect_at:
                self._pending_events = [
                    text
                    for text in self._pending_events
                    if not events.warn(names.EVENT_RECORD_DAMAGED, text)
                ]
                try:
                    stale_claims.collect([*self._found.claims, *self._found.unknown])
                except RetryableError as error:
                    log.warning("stale_claim_check_failed", error=str(error))
                collect_at = time.monotonic() + self._seconds
            wait_seconds = self._seconds
            if outdated:
                wait_seconds = backoff.failed()
            else:
                backoff.succeeded()
            if self._stop.wait(min(wait_seconds, max(0.0, collect_at - time.monotonic()))):
                return
            try:
                self._store.check()
                self._found = recover(self._store, self._files, boot_id=self._boot_id)
            except RetryableError as error:
                log.warning("recovery_retried", error=str(error))
            else:
                self._log_recovery(self._found)

    def _show_reasons(self, status: StatusReporter) -> None:
        """Show in each claim's status why its limits are not enforced; clear it once they are."""
        unenforceable = {record.ref.uid: record for record in self._found.unenforceable}
        for uid, record in unenforceable.items():
            status.report(record, reason=self._found.reasons[uid])
        for record in self._found.claims:
            if record.ref.uid in self._reported - unenforceable.keys():
                status.report(record, reason="")
        for record in self._found.rewritten:
            status.report(record, reason="")
        self._reported = set(unenforceable)

    def _refresh(self, preparer: Preparer) -> list[str]:
        """Refresh the records of an earlier boot; return an error text for each that cannot be yet.

        A claim whose limits cannot be enforced has its new device nodes, so it is not retried.
        """
        errors = []
        for ref in self._found.outdated:
            try:
                preparer.refresh(ref, deadline=time.monotonic())
            except ClaimError:
                continue  # the next recovery reports it
            except RetryableError as error:
                errors.append(str(error))
        if errors:
            log.warning("claim_refresh_failed", claims=len(errors), error=errors[0])
        elif self._found.outdated:
            log.info("claims_refreshed", claims=len(self._found.outdated))
        self._found.outdated.clear()
        return errors

    def _note_damage(self) -> None:
        """Log each damaged record once, and queue an Event."""
        for uid, devices in self._found.damaged.items():
            shown = "every GPU of this node" if devices is None else ", ".join(sorted(devices))
            text = (
                f"the record of claim {uid} was found damaged or missing, expected a readable one; "
                f"it is rebuilt from the claim, and until then nothing more is given out on {shown}"
            )
            if self._throttle.is_new(text, key=f"record {uid}"):
                log.warning("record_damaged", claim_uid=uid, error=text)
                self._pending_events.append(text)

    def _log_recovery(self, found: RecoveryReport, *, always: bool = False) -> None:
        for uid, reason in found.reasons.items():
            self._throttle.warn("claim_recovery_failed", reason, key=uid, claim_uid=uid)
        for reason in found.left[:1]:
            self._throttle.warn("claim_folders_left", reason, key="left", folders=len(found.left))
        damaged = (f"record {uid}" for uid in found.damaged)
        self._throttle.keep_only({*found.reasons, *damaged, *("left" for _ in found.left)})
        if always or found.files_written or found.claims_removed:
            log.info(
                "recovered",
                claims=len(found.claims),
                files_written=found.files_written,
                claims_removed=found.claims_removed,
                rebooted=len(found.outdated),
            )


def recover(store: ClaimStore, files: NodeFiles, *, boot_id: str) -> RecoveryReport:
    """Write missing or damaged files from the records; remove files without a record.

    The folders are empty after a reboot, and a crash can leave a record without files or files
    without a record. The files of a claim whose record is damaged stay. Another instance may
    prepare and unprepare claims at the same time. The API server is not needed.

    Raises:
        RetryableError: The store cannot be read now.
        FatalError: A newer release has written a record.
    """
    found = RecoveryReport(claims=list(store.claims()), damaged=store.damaged())
    for record in found.claims:
        if record.boot_id != boot_id:
            # Its device nodes may be another card's by now, so its files must not name them.
            found.outdated.append(record.ref)
            continue
        try:
            current, written = files.ensure(record, store)
            found.files_written += written
            if current is not None and written:
                found.rewritten.append(current)
        except ClaimError as error:
            # The files stay as they are: running containers were started with them.
            found.reasons[record.ref.uid] = str(error)
            found.unenforceable.append(record)
        except RetryableError as error:
            found.reasons[record.ref.uid] = f"claim {record.ref}: {error}"
    try:
        # Within a transaction, as files are written in one.
        with store.transaction():
            files.remove_unfinished()
        for uid in sorted(files.claim_uids() - {record.ref.uid for record in found.claims}):
            with store.transaction() as records:
                if records.get(uid) is not None:
                    continue  # prepared just now
                remains = files.remains(uid)
                if remains is not None:
                    found.unknown.append(remains.ref)
                    continue
                if uid in records.damaged:
                    continue
                files.remove(uid)
                found.claims_removed += 1
    except RetryableError as error:
        found.reasons[""] = str(error)
    found.left.extend(files.delete_removed())  # slow, so outside any transaction
    return found
