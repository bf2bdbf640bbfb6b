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

from tensorfusion_dra.core.claims import cdi, device_metadata, lending, prepared
from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims import enforcer as enforcers
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import AT_ONCE, Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim, Remains
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver.publish import Catalog, DeviceCatalog
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.enforcers import choice
from tensorfusion_dra.runtime.loops import Backoff
from tensorfusion_dra.state.claim_files import ClaimFiles, HostFiles
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()

_WAIT_SECONDS: Final = 60.0


class NodeFiles:
    """Writer of the claims' files, and of folders for their enforcers.

    They depend on a claim's record alone, so they can be rebuilt from it at any time: CDI specs,
    limits documents, device metadata, and what the enforcer needs on the host.
    """

    def __init__(
        self,
        specs: ClaimFiles,
        limits: ClaimFiles,
        metadata: ClaimFiles,
        host_files: HostFiles,
        enforcers: Mapping[str, Enforcer],
    ) -> None:
        self._specs = specs
        self._limits = limits
        self._metadata = metadata
        self._host_files = host_files
        self._enforcers = enforcers

    def ensure(self, claim: PreparedClaim) -> int:
        """Write what is missing or different; return the number of files written.

        The CDI spec is written last, so that a container that starts with it finds all the rest.

        Raises:
            ClaimError: The claim's enforcer is unknown or cannot express its limits, because
                settings changed or an earlier release took over. Nothing is written.
            RetryableError: A file that the claim's limits depend on is missing, or a folder cannot
                be written.
        """
        enforcer = enforcers.of_claim(claim, self._enforcers)
        needs = enforcer.needs(claim)
        spec = cdi.spec(claim, enforcer, metadata_folder=str(self._metadata.folder))
        if missing := self._host_files.missing(needs):
            raise RetryableError(choice.missing_error(enforcer, missing))
        self._host_files.provide(needs)
        uid = claim.ref.uid
        written = int(self._limits.ensure(uid, prepared.limits_document(claim)))
        if claim.metadata is not None:
            for name, document in device_metadata.documents(claim, claim.metadata).items():
                written += self._metadata.ensure(name, document)
        return written + self._specs.ensure(uid, spec)

    def remove(
        self,
        claim_uid: str,
        claim: PreparedClaim | None,
        *,
        recorded: Callable[[], Sequence[PreparedClaim]] = tuple,
    ) -> None:
        """Remove the claim's files, and its folders unless another claim of its pods needs them.

        Args:
            claim_uid: UID of the claim.
            claim: The claim's record; None if there is none.
            recorded: Returns all recorded claims; called only if there are folders that claims of
                the same pods may use as well.

        Raises:
            RetryableError: A folder cannot be written.
        """
        self._specs.remove(claim_uid)
        self._limits.remove(claim_uid)
        if claim is not None:
            metadata = device_metadata.file_names(claim) if claim.metadata else ()
        else:  # without a record, they are looked up
            found = self._metadata.claim_uids()
            metadata = tuple(n for n in found if device_metadata.claim_uid(n) == claim_uid)
        for name in metadata:
            self._metadata.remove(name)
        own = enforcers.needs_of_record(claim, self._enforcers).folders if claim else ()
        if own:
            pods = {pod.name for pod in claim.pods} if claim else set()
            used = {
                folder
                for other in recorded()
                if other.ref.uid != claim_uid and not pods.isdisjoint(p.name for p in other.pods)
                for folder in enforcers.needs_of_record(other, self._enforcers).folders
            }
            for folder in own:
                if folder not in used:
                    self._host_files.remove(folder.path)
        for root in self._claims_roots():
            self._host_files.remove(f"{root}/{claim_uid}")

    def has(self, claim_uid: str) -> bool:
        """Return True if the claim has a limits document, which is written before its spec."""
        return self._limits.has(claim_uid) or self._specs.has(claim_uid)

    def remove_unfinished(self) -> None:
        """Remove temporary files of crashed writes; a write that is running starts again.

        Raises:
            RetryableError: A folder cannot be read or written.
        """
        self._specs.remove_unfinished()
        self._limits.remove_unfinished()
        self._metadata.remove_unfinished()

    def delete_removed(self) -> Sequence[str]:
        """Delete what is left of removed folders; return why some of it cannot be deleted."""
        return self._host_files.delete_removed()

    def remains(self, claim_uid: str) -> Remains | None:
        """Return what the claim's limits document says; None if there is none of this claim.

        Raises:
            RetryableError: A folder cannot be read.
        """
        found = prepared.remains(self._limits.read(claim_uid))
        return found if found is not None and found.ref.uid == claim_uid else None

    def devices_of(self, claim_uid: str) -> frozenset[str] | None:
        """Return the devices of a claim, as its limits document or else its CDI spec has them.

        None if neither says so.
        """
        try:
            found, spec = self.remains(claim_uid), self._specs.read(claim_uid)
        except RetryableError:
            return None
        return found.devices if found is not None else cdi.devices_of(spec)

    def claim_uids(self) -> frozenset[str]:
        """Return the UIDs of all claims that have a file or a folder, without their records.

        Raises:
            RetryableError: A folder cannot be read.
        """
        folders = [self._host_files.names(root) for root in self._claims_roots()]
        described = {device_metadata.claim_uid(name) for name in self._metadata.claim_uids()}
        found = self._specs.claim_uids().union(self._limits.claim_uids(), described, *folders)
        return frozenset(filter(claims.is_uid, found))

    def _claims_roots(self) -> list[str]:
        roots = (enforcer.claims_root for enforcer in self._enforcers.values())
        return [root for root in roots if root]


class Upkeep:
    """Has everything follow the records; safe for all threads.

    Attributes:
        files: Writer of the claims' files.
    """

    def __init__(
        self,
        store: ClaimStore,
        files: NodeFiles,
        enforcers: Mapping[str, Enforcer],
        status: StatusReporter,
    ) -> None:
        self._store = store
        self.files: Final = files
        self._enforcers = enforcers
        self._status = status

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
                self.files.ensure(newest)
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
                self.files.ensure(record)
                newest = self.report(record)
                enforcer = enforcers.of_claim(newest, self._enforcers)
                enforcer.apply(newest, self._store.claims, AT_ONCE)
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
        self.files.remove(ref.uid, record, recorded=recorded)
        self._status.forget(ref.uid)

    def with_remains(self, facts: ClaimFacts, ref: ClaimRef) -> ClaimFacts:
        """Return the facts of a claim whose record is damaged, with what its files still say.

        Its containers were started with these limits, under this enforcer.
        """
        remains = self.files.remains(ref.uid)
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
