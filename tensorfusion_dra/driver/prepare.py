"""The path of a claim on this node: prepare, unprepare, and the same steps for recovery.

A prepare takes these steps, each of which is a stage in log and metrics:

1. Wait for other calls for the same claim (queue).
2. Read the claim from the API server. A claim keeps its UID when it is allocated again, so a
   repeated call reads it too (read).
3. If a record describes this allocation, bring it up to date and answer from it (lookup).
4. Collect what the claim asks for and what the node offers: policies, devices, device nodes,
   evidence of the enforcer (resolve). This may be slow, so it comes before the transaction.
5. In one transaction of the ledger, decide by admit(), a pure function on all of this, and put
   its record (admit, flush).
6. Write its files, and those of claims whose limits changed in favour of it (write).
7. Have Tensor Fusion's hypervisor or the NVIDIA driver keep the limits, if it is the enforcer
   (register).
8. Report the newest record for the claim's status; if it changed meanwhile, write its files again.

The record is the truth, and the files follow from it: after a crash between steps 5 and 6, recovery
or the kubelet's next call writes them. An unprepare removes files and record in one transaction,
and never asks the API server.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Lock
from weakref import WeakValueDictionary

import structlog

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims import prepared
from tensorfusion_dra.core.claims.admit import admit
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef
from tensorfusion_dra.core.claims.enforcers.nvidia import Nvidia
from tensorfusion_dra.core.claims.operation import OperationKind, Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, NoRoomError, RetryableError
from tensorfusion_dra.driver import operations, share_policies
from tensorfusion_dra.driver.enforcement_watch import NodeEnforcer
from tensorfusion_dra.driver.limit_changes import LimitChanges
from tensorfusion_dra.driver.local_cards import CardsUnreadError, LocalCards
from tensorfusion_dra.driver.node_files import NodeFiles
from tensorfusion_dra.driver.operations import Failure, Operations
from tensorfusion_dra.driver.pod_limits import PodLimits
from tensorfusion_dra.driver.ports import Claims, Pods
from tensorfusion_dra.driver.share_policies import ClaimPods
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.driver.workers import Workers
from tensorfusion_dra.runtime.calls import MAX_WAITING_FOR_A_CLAIM, WaitingCalls
from tensorfusion_dra.state.ledger import Ledger, Transaction

log = structlog.get_logger()


class Preparer:
    """Prepares and unprepares claims; calls may overlap."""

    def __init__(
        self,
        *,
        claims_at_server: Claims,
        pods: Pods | None,
        ledger: Ledger,
        files: NodeFiles,
        cards: LocalCards,
        isolation: Isolation,
        limit_changes: LimitChanges,
        status: StatusReporter,
        operations: Operations,
        enforcer: NodeEnforcer,
        pod_limits: PodLimits | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            pods: None if the driver has no permission to read pods.
            isolation: Default for shares whose isolation no source sets, not even the node's pool.
            limit_changes: Recomputes the limits of the other claims on a claim's cards.
            enforcer: Chooses the enforcer of new claims.
            pod_limits: Has the NVIDIA driver keep limits; None without NVIDIA cards.
            workers: The bridge to Tensor Fusion's hypervisor; None without one.
        """
        self._claims, self._pods = claims_at_server, pods
        self._ledger, self._files = ledger, files
        self._cards = cards
        self._isolation = isolation
        self._limit_changes, self._status = limit_changes, status
        self._operations, self._enforcer, self._workers = operations, enforcer, workers
        self._pod_limits = pod_limits
        self._locks = ClaimLocks()
        self._refused = Event()

    def prepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, PreparedClaim | Failure]:
        """Prepare claims; return the outcome of each, by UID. A failed one costs no other.

        Args:
            deadline: On time.monotonic()'s clock; what is not done by then has failed.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        return self._operations.run_each(
            OperationKind.PREPARE, refs, lambda ref: self._prepare_one(ref, deadline)
        )

    def unprepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, Failure | None]:
        """Unprepare claims; return the outcome of each, by UID.

        None is success, also for a claim that was never prepared. The claim may be gone or replaced
        at the API server by now, so nothing is read there.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        return self._operations.run_each(
            OperationKind.UNPREPARE, refs, lambda ref: self._unprepare_one(ref, deadline)
        )

    def refresh(self, ref: ClaimRef, *, deadline: float) -> None:
        """Redo what a reboot undid: its device nodes and mounts, and the files made of them.

        A claim that is unprepared by now is left alone.

        Raises:
            ClaimError: Its limits cannot be enforced by the present settings.
            RetryableError: The cards are not known yet, one of the claim's is gone, or another
                call for the claim is running.
            FatalError: A newer release has changed the ledger.
        """
        with self._locks.locked(ref, deadline):
            self._updated(ref, None)

    def release(self, ref: ClaimRef, is_gone: Callable[[], bool], *, deadline: float) -> bool:
        """Unprepare a claim without a call of the kubelet; return False if it is not gone.

        Args:
            ref: The claim.
            is_gone: Called while no call for the claim can be running.
            deadline: On time.monotonic()'s clock.

        Raises:
            RetryableError: It cannot be found out or done now.
            FatalError: A newer release has changed the ledger.
        """
        with self._locks.locked(ref, deadline):
            gone = is_gone()
            if gone:
                self._remove(ref)
            return gone

    def take_refusal(self) -> bool:
        """Return True if since the last call a claim did not fit beside the recorded ones.

        The record of a claim that is gone may have been in its way.
        """
        was_refused = self._refused.is_set()
        self._refused.clear()
        return was_refused

    def _prepare_one(self, ref: ClaimRef, deadline: float) -> PreparedClaim:
        claims.check_ref(ref)
        with self._locks.locked(ref, deadline):
            operations.enter(Stage.READ)
            stored = self._claims.fetch(ref, wait_seconds=deadline - time.monotonic())
            claim = claims.allocated(ref, stored)
            operations.enter(Stage.LOOKUP)
            record = self._recorded(claim, deadline)
            if record is not None:
                operations.answered_from_record()
            elif claim.allocations:
                record = self._admitted(claim, deadline)
            else:
                return PreparedClaim(ref=ref, shares=())
            # If one of these fails, the record stays, and the kubelet's next call comes here again.
            if self._pod_limits is not None and record.enforcer == Nvidia.name:
                operations.enter(Stage.REGISTER)
                self._pod_limits.set(record)
            if self._workers is not None:
                operations.enter(Stage.REGISTER)
                self._workers.register(record, deadline)
            return self._reported(record)

    def _admitted(self, claim: AllocatedClaim, deadline: float) -> PreparedClaim:
        """Record a claim and write its files; return its newest record.

        Raises:
            ClaimError: The claim does not fit, or its limits cannot be enforced. Nothing changes.
            RetryableError: The cards are not known yet, the API server, the ledger or a file cannot
                be read or written now, or nothing on the node would enforce the claim's limits now.
        """
        operations.enter(Stage.RESOLVE)
        catalog = self._cards.wait_for_catalog(claim.ref, deadline)
        devices = {allocation.device for allocation in claim.allocations}
        self._cards.check_present(claim.ref, devices)
        self._cards.check_free(
            claim.ref, (each.device for each in claim.allocations if not each.admin_access)
        )
        pods = ClaimPods(self._pods, claim, deadline=deadline)
        policies = share_policies.of_claim(claim, pods, node=catalog.node, default=self._isolation)
        choice = self._enforcer.of_new_claim()
        neighbours = share_policies.neighbours(
            claim, policies, pods, enforcer=choice.enforcer, rules=self._cards.facts.rules
        )
        facts = replace(
            self._cards.facts.of_devices(catalog, devices),
            enforcer=choice.enforcer,
            enforces_hard=self._enforcer.enforces_hard(choice),
            lacking=choice.lacking,
        )
        evidence = self._enforcer.required_evidence()
        operations.enter(Stage.ADMIT)
        with self._ledger.transaction() as transaction:
            try:
                admission = admit(
                    claim,
                    policies,
                    facts,
                    transaction.claims(),  # maybe this one, prepared by another instance meanwhile
                    neighbours,
                    evidence=evidence,
                    missing=self._files.missing,
                )
            except ClaimError:
                self._refused.set()
                raise
            transaction.put(admission.record)
            for other in admission.changed:
                transaction.put(other)
            operations.enter(Stage.FLUSH)
        operations.enter(Stage.WRITE)
        self._limit_changes.write(admission.changed)
        # Outside a transaction, so that other claims do not wait. Meanwhile a transaction for
        # another claim, or of another instance, may change the record and write its files.
        # Therefore _reported() compares the record afterwards.
        self._files.write(admission.plan)
        return admission.record

    def _recorded(self, claim: AllocatedClaim, deadline: float) -> PreparedClaim | None:
        """Return the record of this allocation, with its files as they should be; None if none.

        Raises:
            ClaimError: Its limits cannot be enforced by the present settings.
            RetryableError: The cards are not known yet, or one of the claim's is gone.
        """
        if not self._ledger.has(claim.ref.uid):
            return None
        try:
            record = self._updated(claim.ref, claim)
        except CardsUnreadError:
            operations.enter(Stage.RESOLVE)  # slow, so outside the transaction
            self._cards.wait_for_catalog(claim.ref, deadline)
            record = self._updated(claim.ref, claim)
        if record is None or prepared.describes(record, claim):
            return record
        # The scheduler has given the old share back, and the kubelet will not unprepare it.
        log.warning("claim_reallocated", devices=[share.device for share in record.shares])
        self._remove(claim.ref)
        return None

    def _updated(self, ref: ClaimRef, claim: AllocatedClaim | None) -> PreparedClaim | None:
        """Bring a record and its files up to date; return it, or None if there is none.

        After a reboot a card may have other device nodes, and a shared claim may have other pods. A
        record of another allocation than the claim's is returned as it is.

        Args:
            ref: The claim.
            claim: As read from the API server; None after a reboot, whatever its allocation is now.

        Raises:
            RetryableError: Another instance unprepared the claim meanwhile, or a file cannot be
                written.
        """
        with self._ledger.transaction() as transaction:
            record = transaction.get(ref.uid)
            if record is None or (claim is not None and not prepared.describes(record, claim)):
                return record
            today = record
            if claim is not None:
                self._cards.check_present(ref, (share.device for share in record.shares))
                if not {*record.pods} & {*claim.pods}:
                    today = replace(record, pods=(*claim.pods,))
            today = self._cards.with_todays_access(today)
            if today == record:
                self._files.ensure(record)
                return record
            transaction.put(today)
            operations.enter(Stage.FLUSH)
        operations.enter(Stage.WRITE)
        with self._ledger.transaction() as transaction:
            current = self._current(transaction, today)
            self._files.ensure(current)
        return current

    def _reported(self, record: PreparedClaim) -> PreparedClaim:
        """Queue the status of the claim's newest record; return that record, with its files.

        Other claims may have changed its limits since its files were written. They report it in a
        transaction too, so the last report is that of the last record.

        Raises:
            RetryableError: See _updated().
        """
        with self._ledger.transaction() as transaction:
            current = self._current(transaction, record)
            if current is not record:
                self._files.ensure(current)
            self._status.report(current, trouble="")
        return current

    def _current(self, transaction: Transaction, record: PreparedClaim) -> PreparedClaim:
        current = transaction.current(record)
        if current is None:
            self._files.remove(record.ref.uid, record)
            raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")
        return current

    def _unprepare_one(self, ref: ClaimRef, deadline: float) -> None:
        if not claims.is_uid(ref.uid):
            return  # nothing was ever prepared under such a UID
        with self._locks.locked(ref, deadline):
            self._remove(ref)

    def _remove(self, ref: ClaimRef) -> None:
        """Return once nothing is left of the claim; do nothing if nothing is.

        Raises:
            RetryableError: Its files or its record cannot be removed now.
            FatalError: A newer release has changed the ledger.
        """
        try:
            changed = self._removed(ref)
        except NoRoomError:
            self._ledger.make_room()
            changed = self._removed(ref)
        operations.enter(Stage.WRITE)
        self._status.forget(ref.uid)
        self._limit_changes.write(changed)

    def _removed(self, ref: ClaimRef) -> Sequence[PreparedClaim]:
        """Remove files and record; return the other claims whose limits changed by that.

        The files go inside the transaction, so that no other one writes them again meanwhile. A
        crash after it leaves a record without files, which is prepared or unprepared again; files
        without a record would be orphans.
        """
        operations.enter(Stage.WITHDRAW)
        with self._ledger.transaction() as transaction:
            record = transaction.get(ref.uid)
            if record is None:
                self._files.remove(ref.uid, None)
                return ()
            if self._workers is not None:
                self._workers.release(record, transaction.claims())
            if self._pod_limits is not None:
                self._pod_limits.release(transaction, record)
            self._files.remove(ref.uid, record, recorded=transaction.claims)
            changed = self._limit_changes.remove(transaction, record)
            operations.enter(Stage.FLUSH)
        return changed


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
