"""The path of a claim on this node: prepare, unprepare, and the same steps for recovery.

A prepare takes these steps, each of which is a stage in log and metrics:

1. Wait for other calls for the same claim (queue).
2. Read the claim from the API server. A claim keeps its UID when it is allocated again, so a
   repeated call reads it too (read). If a record describes this allocation, the call is answered
   from it, without the lock of the store (lookup).
3. Read everything that a decision needs: policies, pods, devices and their nodes, signs of the
   enforcer (resolve). This may be slow, so nothing is looked up later.
4. Build the record of it, and ask the enforcer whether it can keep its limits. In one transaction
   of the store, check it beside the other records, and put it, which divides the limits (admit,
   flush).
5. Have everything follow the record: the claim's files, and those of claims whose limits changed in
   favour of it (write); the enforcer (register); the claim's status.

The record is the truth, and the rest follows from it: after a crash between steps 4 and 5, recovery
or the kubelet's next call does what is left. An unprepare has the enforcer let go of the claim,
then removes files and record in one transaction. It never asks the API server, and needs no
readable record. No enforcer is called in a transaction, since one may hang (docs/adr/0070).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Lock
from weakref import WeakValueDictionary

import structlog

from tensorfusion_dra.core.claims import admit, isolation, prepared
from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef, PodRef
from tensorfusion_dra.core.claims.enforcer import SilentEnforcerError
from tensorfusion_dra.core.claims.operation import OperationKind, Stage
from tensorfusion_dra.core.claims.ports import ClaimSource
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.driver import operations
from tensorfusion_dra.driver.claim_facts import FactsReader, check_present
from tensorfusion_dra.driver.claim_upkeep import Upkeep
from tensorfusion_dra.driver.operations import Failure, Operations
from tensorfusion_dra.runtime.calls import MAX_WAITING_FOR_A_CLAIM, WaitingCalls
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()


class Preparer:
    """Prepares and unprepares claims; calls may overlap."""

    def __init__(
        self,
        claims_at_server: ClaimSource,
        store: ClaimStore,
        facts: FactsReader,
        upkeep: Upkeep,
        operations: Operations,
    ) -> None:
        self._claims = claims_at_server
        self._store = store
        self._facts = facts
        self._upkeep = upkeep
        self._operations = operations
        self._locks = ClaimLocks()
        self._refused = Event()

    def prepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, PreparedClaim | Failure]:
        """Prepare claims; return the outcome of each, by UID. A failed one costs no other.

        Args:
            deadline: On time.monotonic()'s clock; what is not done by then has failed.

        Raises:
            FatalError: A newer release has written a record.
        """
        return self._operations.run_each(
            OperationKind.PREPARE, refs, lambda ref: self._prepare_one(ref, deadline)
        )

    def _prepare_one(self, ref: ClaimRef, deadline: float) -> PreparedClaim:
        claim_rules.check_ref(ref)
        with self._locks.locked(ref, deadline):
            operations.enter(Stage.READ)
            stored = self._claims.fetch(ref, wait_seconds=deadline - time.monotonic())
            claim = claim_rules.allocated(ref, stored)
            operations.enter(Stage.LOOKUP)
            record = self._recorded(claim, deadline)
            if record is None and not claim.allocations:
                return PreparedClaim(ref=ref, shares=())
            if record is None:
                record = self._admitted(claim, deadline)
            # If this fails, the record stays, and the kubelet's next call comes here again.
            return self._kept(record, deadline)

    def _recorded(self, claim: AllocatedClaim, deadline: float) -> PreparedClaim | None:
        """Return the record of this allocation, as it should be today; None if there is none.

        Raises:
            RetryableError: The cards are not known yet, or one of the claim's is gone.
        """
        record = self._store.get(claim.ref.uid)
        if record is None:
            return None
        if not prepared.describes(record, claim):
            # The scheduler has given the old share back, and the kubelet will not unprepare it.
            log.warning("claim_reallocated", devices=[share.device for share in record.shares])
            self._remove(claim.ref)
            return None
        if catalog := self._facts.catalog.current():
            check_present(claim.ref, (share.device for share in record.shares), catalog)
        return self._updated(record, deadline, pods=claim.pods)

    def _admitted(self, claim: AllocatedClaim, deadline: float) -> PreparedClaim:
        """Return the new record of a claim.

        Raises:
            ClaimError: The claim does not fit, or its limits cannot be enforced. Nothing changes.
            RetryableError: The cards are not known yet, the API server or the store cannot be read
                or written now, or nothing on the node would enforce the claim's limits now.
        """
        operations.enter(Stage.RESOLVE)
        is_damaged = claim.ref.uid in self._store.damaged()
        remains = self._upkeep.files.remains(claim.ref.uid) if is_damaged else None
        facts = self._facts.of_claim(claim, remains, deadline)
        operations.enter(Stage.ADMIT)
        record = self._upkeep.enforceable(admit.record(claim, facts), facts)
        pod_folder = self._upkeep.files.pod_folder
        with self._store.transaction() as records:
            try:
                # Maybe one of the records is this claim's, prepared by another instance meanwhile.
                admit.check(record, facts, pod_folder, records.by_uid.values(), records.damaged)
            except ClaimError:
                self._refused.set()
                raise
            record = records.put(record)
            operations.enter(Stage.FLUSH)
        operations.enter(Stage.WRITE)
        self._upkeep.update(records.changed())
        return record

    def _kept(self, record: PreparedClaim, deadline: float) -> PreparedClaim:
        """Update files, enforcer and status from the record; return the newest one.

        A claim for whole cards does without limits while its enforcer is silent.

        Raises:
            ClaimError: The enforcer cannot keep the limits.
            RetryableError: It does not keep them now, a file cannot be written, or another instance
                unprepared the claim meanwhile.
        """
        record = self._upkeep.write(record)
        try:
            self._upkeep.apply(record, deadline)
        except SilentEnforcerError:
            catalog = self._facts.catalog.current()
            devices = catalog.by_name() if catalog else {}
            with self._store.transaction() as records:
                current = records.get(record.ref.uid) or record
                unlimited = isolation.without_limits(current, devices)
                if unlimited is None:
                    raise
                record = records.put(unlimited)
            record = self._upkeep.write(record)
        return self._upkeep.report(record)

    def _updated(
        self, record: PreparedClaim, deadline: float, *, pods: tuple[PodRef, ...]
    ) -> PreparedClaim:
        """Return the record with the device nodes of this boot, and pods that use the claim now."""
        newest: PreparedClaim | None = record
        while newest is not None:
            record = newest
            today = self._facts.today(record, deadline)
            if pods and not {*record.pods} & {*pods}:
                today = replace(today, pods=pods)  # a shared claim may have other pods by now
            if today == record:
                return record
            with self._store.transaction() as records:
                newest = records.get(record.ref.uid)
                if newest == record:
                    newest = records.put(today)
                    operations.enter(Stage.FLUSH)
            operations.enter(Stage.WRITE)
        raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")

    def refresh(self, ref: ClaimRef, *, deadline: float) -> None:
        """Redo what a reboot undid: its device nodes and mounts, and the files made of them.

        A claim that is unprepared by now is left alone.

        Raises:
            ClaimError: Its limits cannot be enforced by the present settings.
            RetryableError: The cards are not known yet, one of the claim's is gone, or another
                call for the claim is running.
            FatalError: A newer release has written a record.
        """
        with self._locks.locked(ref, deadline):
            if (record := self._store.get(ref.uid)) is not None:
                self._upkeep.write(self._updated(record, deadline, pods=()))

    def unprepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, Failure | None]:
        """Unprepare claims; return the outcome of each, by UID.

        None is success, also for a claim that was never prepared. The claim may be gone or replaced
        at the API server by now, so nothing is read there.

        Raises:
            FatalError: A newer release has written a record.
        """
        return self._operations.run_each(
            OperationKind.UNPREPARE, refs, lambda ref: self._unprepare_one(ref, deadline)
        )

    def _unprepare_one(self, ref: ClaimRef, deadline: float) -> None:
        if not claim_rules.is_uid(ref.uid):
            return  # nothing was ever prepared under such a UID
        with self._locks.locked(ref, deadline):
            self._remove(ref)

    def release(self, ref: ClaimRef, is_gone: Callable[[], bool], *, deadline: float) -> bool:
        """Unprepare a claim without a call of the kubelet; return False if it is not gone.

        Args:
            ref: The claim.
            is_gone: Called while no call for the claim can be running.
            deadline: On time.monotonic()'s clock.

        Raises:
            RetryableError: It cannot be found out or done now.
            FatalError: A newer release has written a record.
        """
        with self._locks.locked(ref, deadline):
            gone = is_gone()
            if gone:
                self._remove(ref)
            return gone

    def _remove(self, ref: ClaimRef) -> None:
        """Return once nothing is left of the claim; do nothing if nothing is.

        Raises:
            RetryableError: Its files or its record cannot be removed now.
            FatalError: A newer release has written a record.
        """
        operations.enter(Stage.WITHDRAW)
        record = self._upkeep.release(ref)
        with self._store.transaction() as records:
            # In this order: a crash leaves a record without files, which is prepared or unprepared
            # again; files without a record would be orphans.
            self._upkeep.remove(ref, record, records.by_uid.values())
            records.remove(ref.uid)
            operations.enter(Stage.FLUSH)
        operations.enter(Stage.WRITE)
        self._upkeep.update(records.changed())

    def dismiss(self, ref: ClaimRef) -> None:
        """Give out again what a claim has that is gone, and of which only files are left.

        Raises:
            RetryableError: The store cannot be written now.
            FatalError: A newer release has written a record.
        """
        self._store.dismiss(ref.uid)

    def take_refusal(self) -> bool:
        """Return True if since the last call a claim did not fit beside the recorded ones.

        The record of a claim that is gone may have been in its way.
        """
        was_refused = self._refused.is_set()
        self._refused.clear()
        return was_refused


class ClaimLocks:
    """Locks that let one call at a time work on a claim; a lock exists only while a call uses it.

    The kubelet may repeat a call while its first try is still running. The call that holds a lock
    may be waiting for a slow API server, so the number of calls that wait for locks is bounded.
    """

    def __init__(self) -> None:
        self._waiting = WaitingCalls(
            MAX_WAITING_FOR_A_CLAIM, reason="wait for another call's claim"
        )
        self._guard = Lock()  # guards _locks
        self._locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()

    @contextmanager
    def locked(self, ref: ClaimRef, deadline: float) -> Iterator[None]:
        """Hold the claim's lock inside the block.

        Args:
            ref: The claim; its UID selects the lock.
            deadline: On time.monotonic()'s clock.

        Raises:
            RetryableError: Another call for the claim held the lock until the deadline, or too many
                calls are waiting for locks.
        """
        with self._guard:
            lock = self._locks.setdefault(ref.uid, Lock())
        # Only calls that have to wait count against the bound.
        if not lock.acquire(blocking=False):
            with self._waiting.slot(f"claim {ref}"):
                if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise RetryableError(f"claim {ref}: another call for it is still running")
        try:
            yield
        finally:
            lock.release()
