"""Upkeep of prepared claims: files, limits and statuses follow the records.

The store computes what a claim may use from all claims on its cards (core/claims/lending.py). So a
record changes when its claim is prepared, and its limits change

- when a claim on the same card is prepared or unprepared: that transaction knows which ones, and
  update() writes their files, limits and statuses;
- when the catalog changes, as a pool may hand out less: divide() records what the cards have now.

After a start with other rules, recovery has the files follow (recover.py).

A file is made of a record outside of the store's lock, since enforcers are asked for that. If it
differs from what is there, it is written under the lock, and only if its record is still the one
that it was made of; else it is made of the newer one. So a file is never older than its record by
more than the call that changed the record, and a claim without a record gets none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from tensorfusion_dra.core.claims import admit, cdi, device_metadata, lending, prepared
from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import AT_ONCE, Enforcer, Needs
from tensorfusion_dra.core.claims.operation import Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim, Remains
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver import operations
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.enforcers import choice
from tensorfusion_dra.state import claim_files
from tensorfusion_dra.state.claim_files import ClaimFiles, ExpectedFile, HostFiles
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()


class NodeFiles:
    """Writer of the claims' files, and of folders for their enforcers.

    They depend on a claim's record alone, so they can be rebuilt from it at any time: CDI specs,
    limits documents, device metadata, and what the enforcer needs on the host.

    Attributes:
        host_files: What enforcers need on the host.
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
        self.host_files: Final = host_files
        self._enforcers = enforcers
        self._claims_roots = [each.claims_root for each in enforcers.values() if each.claims_root]

    def ensure(self, claim: PreparedClaim, store: ClaimStore) -> tuple[PreparedClaim | None, int]:
        """Write what is missing or different.

        Return the record that the files are of by now, and the number of files written. The record
        is None if the claim was unprepared meanwhile; then nothing is written.

        Raises:
            ClaimError: The claim's enforcer is unknown or cannot express its limits, because
                settings changed or an earlier release took over. Nothing is written.
            RetryableError: A file that the claim's limits depend on is missing, or a folder cannot
                be written.
        """
        newest: PreparedClaim | None = claim
        while newest is not None:
            claim = newest
            needs, made = self._made(claim)
            differing = claim_files.differing(made)
            if self.host_files.has(needs) and not differing:
                return claim, 0
            with store.transaction() as records:
                newest = records.get(claim.ref.uid)
                if newest == claim:
                    self.host_files.provide(needs)
                    claim_files.write(differing)
                    return newest, len(differing)
        return None, 0

    def _made(self, claim: PreparedClaim) -> tuple[Needs, Sequence[ExpectedFile]]:
        """Return what the claim's enforcer needs, and the claim's files as they should be.

        The CDI spec is the last, so that a container that starts with it finds all the rest.
        """
        uid, enforcer = claim.ref.uid, enforcer_rules.of_claim(claim, self._enforcers)
        needs = enforcer.needs(claim)
        spec = cdi.spec(claim, enforcer, metadata_folder=str(self._metadata.folder))
        if missing := self.host_files.missing(needs):
            raise RetryableError(choice.missing_error(enforcer, missing))
        described = device_metadata.documents(claim, claim.metadata) if claim.metadata else {}
        return needs, (
            self._limits.made(uid, prepared.limits_document(claim)),
            *(self._metadata.made(name, each) for name, each in described.items()),
            self._specs.made(uid, spec),
        )

    def pod_folder(self, claim: PreparedClaim) -> str:
        """Return the folder that a claim shares with others of its pod; "" if none."""
        enforcer = self._enforcers.get(claim.enforcer)
        return enforcer.pod_folder(claim) if enforcer else ""

    def remove(
        self,
        claim_uid: str,
        claim: PreparedClaim | None = None,
        recorded: Iterable[PreparedClaim] = (),
    ) -> None:
        """Remove the claim's files and folder, and that of its pod unless another claim needs it.

        Args:
            claim_uid: UID of the claim.
            claim: The claim's record; None if there is none.
            recorded: All recorded claims.

        Raises:
            RetryableError: A folder cannot be written.
        """
        self._specs.remove(claim_uid)
        self._limits.remove(claim_uid)
        for name in self._metadata.claim_uids():
            if device_metadata.claim_uid(name) == claim_uid:
                self._metadata.remove(name)
        folder = self.pod_folder(claim) if claim else ""
        beside = (other for other in recorded if folder and other.ref.uid != claim_uid)
        if folder and all(self.pod_folder(other) != folder for other in beside):
            self.host_files.remove(folder)
        for root in self._claims_roots:
            self.host_files.remove(f"{root}/{claim_uid}")

    def remove_unfinished(self) -> None:
        """Remove temporary files of crashed writes; a write that is running starts again.

        Raises:
            RetryableError: A folder cannot be read or written.
        """
        for files in (self._specs, self._limits, self._metadata):
            files.remove_unfinished()

    def delete_removed(self) -> Sequence[str]:
        """Delete what is left of removed folders; return why some of it cannot be deleted."""
        return self.host_files.delete_removed()

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
        folders = [self.host_files.names(root) for root in self._claims_roots]
        described = {device_metadata.claim_uid(name) for name in self._metadata.claim_uids()}
        found = self._specs.claim_uids().union(self._limits.claim_uids(), described, *folders)
        return frozenset(filter(claim_rules.is_uid, found))


class Upkeep:
    """Writer of all that follows from the records; safe for all threads.

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

    def enforceable(self, record: PreparedClaim, facts: ClaimFacts) -> PreparedClaim:
        """Return a new record that the claim's enforcer can enforce; see admit.enforceable().

        Raises:
            ClaimError: The enforcer cannot limit such a claim.
            RetryableError: Nothing on the node would enforce the limits now.
        """
        enforcer = enforcer_rules.of_claim(record, self._enforcers)
        if missing := self.files.host_files.missing(enforcer.needs(record)):
            missing = choice.missing_error(enforcer, missing)
        return admit.enforceable(record, enforcer, missing, facts)

    def write(self, record: PreparedClaim) -> PreparedClaim:
        """Write the claim's files; return the record from which they are made.

        Raises:
            ClaimError: See NodeFiles.ensure().
            RetryableError: The claim was unprepared meanwhile, or a file cannot be written.
        """
        newest, _ = self.files.ensure(record, self._store)
        if newest is None:
            raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")
        return newest

    def apply(self, record: PreparedClaim, deadline: float) -> None:
        """Apply the claim's limits by its enforcer; see Enforcer.apply()."""
        enforcer = enforcer_rules.of_claim(record, self._enforcers)
        if enforcer.is_told and deadline != AT_ONCE:
            operations.enter(Stage.REGISTER)
        enforcer.apply(record, self._store.claims, deadline)

    def report(self, record: PreparedClaim) -> PreparedClaim:
        """Report the claim's newest record in its status, and return it.

        Raises:
            RetryableError: The claim was unprepared meanwhile.
        """
        newest: PreparedClaim | None = record
        while newest is not None:
            self._status.report(newest, reason="")
            record, newest = newest, self._store.get(record.ref.uid)
            if newest == record:
                return record
        self._status.forget(record.ref.uid)
        raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")

    def update(self, changed: Sequence[PreparedClaim], deadline: float = AT_ONCE) -> None:
        """Update files, enforcers and statuses of claims whose limits changed.

        What an enforcer cannot do until the deadline is left for later. By default it waits for
        nothing, so that no other claim waits for it. A
        failure is logged: the claim's own next call, or recovery, repeats it. The status says so
        if its enforcer refuses the limits.
        """
        for record in changed:
            try:
                self.apply(self.report(self.write(record)), deadline)
            except (ClaimError, RetryableError) as error:
                log.warning("limits_update_failed", claim=str(record.ref), error=str(error))
                if isinstance(error, ClaimError):
                    self._status.report(record, reason=str(error))

    def release(self, ref: ClaimRef) -> PreparedClaim | None:
        """Release the claim from its enforcer; return the claim's record.

        Raises:
            RetryableError: The enforcer cannot let go now.
        """
        record = self._store.get(ref.uid)
        if record is not None and (enforcer := self._enforcers.get(record.enforcer)):
            enforcer.release(record, self._store.claims)
        return record

    def remove(
        self, ref: ClaimRef, record: PreparedClaim | None, recorded: Iterable[PreparedClaim]
    ) -> None:
        """Remove what follows from a record, whether or not there is one.

        Raises:
            RetryableError: A folder cannot be written.
        """
        self.files.remove(ref.uid, record, recorded)
        self._status.forget(ref.uid)

    def divide(self, devices: Mapping[str, Device]) -> Sequence[PreparedClaim]:
        """Divide the cards, as they are now, again; return the claims whose limits changed.

        Raises:
            RetryableError: The store cannot be read or written now.
            FatalError: A newer release has written a record.
        """
        with self._store.transaction() as records:
            for record in list(records.by_uid.values()):
                today = lending.with_totals(record, devices)
                if today != record:
                    records.put(today)
        changed = records.changed()
        if changed:
            log.info("limits_recomputed", claims=len(changed))
            self.update(changed)
        return changed
