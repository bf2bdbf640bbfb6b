"""From an allocated claim to a CDI spec, and back.

A call reads the claim from the API server, unless its record may answer (recent_reads), then takes
a step in the ledger. The record is the truth and the files are a projection of it: files are
written after the step that records a claim. After a crash between the two, recovery or the
kubelet's next call writes the files.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef
from tensorfusion_dra.core.claims.operation import OperationKind, Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.driver import operations
from tensorfusion_dra.driver.admission import Admission
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.claim_locks import ClaimLocks
from tensorfusion_dra.driver.claim_pods import ClaimPods
from tensorfusion_dra.driver.division import Division
from tensorfusion_dra.driver.local_cards import LocalCards
from tensorfusion_dra.driver.node_offers import NodeOffers
from tensorfusion_dra.driver.operations import Operations
from tensorfusion_dra.driver.outcomes import Failure
from tensorfusion_dra.driver.ports.cluster import Claims, Pods
from tensorfusion_dra.driver.ports.enforcement import LiveSigns
from tensorfusion_dra.driver.prefetch import Prefetch, Prefetched
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.recent_reads import RecentReads
from tensorfusion_dra.driver.recorded_claims import RecordedClaims
from tensorfusion_dra.driver.share_policies import SharePolicyReader
from tensorfusion_dra.driver.shared_containers import SharedContainers
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.driver.withdraw import Withdrawal
from tensorfusion_dra.state.ledger import Ledger


class Preparer:
    """Prepares and unprepares claims; calls may overlap."""

    def __init__(
        self,
        claims_at_server: Claims,
        ledger: Ledger,
        projection: Projection,
        catalog: DeviceCatalog,
        *,
        offers: NodeOffers,
        share_policies: SharePolicyReader,
        pods: Pods | None,
        division: Division,
        status: StatusReporter,
        required: LiveSigns | None = None,
        operations: Operations | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare nothing yet.

        Args:
            pods: None if the driver has no permission to read pods.
            division: Recomputes the limits of the other claims on a claim's cards, and has the
                bridge to Tensor Fusion's hypervisor, if there is one.
            required: Reads the signs of the enforcer without which a claim is refused; None if
                claims are prepared whether or not something enforces their limits.
            operations: Runs and measures them; None if nobody follows them.
            clock: In seconds, for the age of what was read of claims.
        """
        self._claims, self._ledger = claims_at_server, ledger
        self._cards = LocalCards(catalog, offers)
        self._offers, self._share_policies = offers, share_policies
        self._pods = pods
        self._division, self._status = division, status
        self._required = required
        self._shared_containers = SharedContainers(
            projection=projection,
            fixed=offers.rules.fixed(offers.enforcer),
            counts_by_pid=offers.rules.counts_by_pid(offers.enforcer),
        )
        self._admission = Admission(
            ledger=ledger,
            index=division.index,
            projection=projection,
            shared_containers=self._shared_containers,
        )
        self._withdrawal = Withdrawal(ledger, projection, division=division, status=status)
        self._recorded = RecordedClaims(ledger, projection, self._cards, self._withdrawal)
        self._locks = ClaimLocks()
        self._reads = RecentReads(clock=clock)
        self._operations = operations or Operations()
        self._prefetch = Prefetch(self._fetched, self._locks, self._reads, self._operations.clock)

    def forget_recent_reads(self) -> None:
        """Read every claim again: the kubelet may have been restarted, see RecentReads."""
        self._reads.forget_all()

    def take_refusal(self) -> bool:
        """Return True if since the last call a claim did not fit beside the recorded ones."""
        was_refused = self._admission.refused.is_set()
        self._admission.refused.clear()
        return was_refused

    def prepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, PreparedClaim | Failure]:
        """Prepare claims; return the outcome of each, by UID. A failed one costs no other.

        Args:
            deadline: On time.monotonic()'s clock; what is not done by then has failed.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        wanted = list(refs)
        began = self._operations.clock()
        with self._prefetch.of(wanted, deadline) as prefetched:
            return self._operations.run_each(
                OperationKind.PREPARE,
                wanted,
                lambda ref: self._prepare_one(ref, prefetched.get(ref.uid), deadline),
                began=began,
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
            OperationKind.UNPREPARE,
            refs,
            lambda ref: self._unprepare_one(ref, deadline),
            began=self._operations.clock(),
        )

    def refresh(self, ref: ClaimRef, *, deadline: float) -> None:
        """Redo what a reboot undid: today's device nodes and mounts, and the files made of them.

        A claim that is unprepared by now is left alone.

        Raises:
            ClaimError: Its limits cannot be enforced by the settings of today.
            RetryableError: The cards are not known yet, one of the claim's is gone, or another
                call for the claim is running.
            FatalError: A newer release has changed the ledger.
        """
        with self._locks.locked(ref, deadline):
            self._recorded.use(ref, None, deadline, needs_present_cards=False)

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
                self._withdraw(ref)
            return gone

    def show_trouble(self, record: PreparedClaim, text: str) -> None:
        """Show in the claim's status why its limits are not enforced; "" removes the text."""
        self._status.report(record, trouble=text)

    def _prepare_one(
        self, ref: ClaimRef, prefetched: Prefetched | None, deadline: float
    ) -> PreparedClaim:
        claims.checked_ref(ref)
        with self._locks.locked(ref, deadline) as turn:
            record = None
            if self._reads.covers(ref.uid):
                record = self._recorded.use(ref, None, deadline)
            if record is None:
                operations.enter(Stage.READ)
                if prefetched is not None and prefetched.turn == turn:
                    operations.note_read(*prefetched.times)
                    began, claim = prefetched.began, prefetched.claim()
                else:
                    began, claim = self._reads.begin(), self._fetched(ref, deadline)
                record = self._recorded.use(ref, claim, deadline)
                # Only now: if a record of an earlier allocation could not be withdrawn, it must
                # not answer the next call.
                self._reads.note(ref.uid, began)
                if record is None:
                    return self._finished(self._admitted(claim, deadline), deadline)
            operations.note_from_record()
            return self._finished(record, deadline)

    def _finished(self, record: PreparedClaim, deadline: float) -> PreparedClaim:
        """Return the newest record once the hypervisor keeps its limits, and queue its status.

        Other claims may have changed its limits meanwhile. They report it in a step of the ledger
        too, so the last report is that of the last record.
        """
        self._register(record, deadline)
        with self._ledger.transaction() as step:
            current = step.current(record)
            if current is not None:
                self._status.report(current, trouble="")
        return current or record

    def _register(self, record: PreparedClaim, deadline: float) -> None:
        """Return once the hypervisor keeps the claim's limits, where it is the one to keep them.

        Last, because its memory of the pod's cards is made of records. If it fails, the record
        stays, and the kubelet's next call comes here again.
        """
        workers = self._division.workers
        if workers is None:
            return
        operations.enter(Stage.REGISTER)

        def of_same_pods() -> Sequence[PreparedClaim]:
            with self._ledger.transaction() as step:
                return self._division.of_same_pods(step, record)

        workers.register(record, of_same_pods, deadline)

    def _fetched(self, ref: ClaimRef, deadline: float) -> AllocatedClaim:
        """Read the claim from the API server; slow, so outside any step of the ledger.

        Raises:
            ClaimError: The claim is gone, was replaced, or is not allocated.
            RetryableError: The claim cannot be read now. Then no record answers either: the kubelet
                read the claim just before it called, so this is no outage of the API server.
        """
        stored = self._claims.fetch(ref, wait_seconds=deadline - time.monotonic())
        return claims.allocated(ref, stored)

    def _admitted(self, claim: AllocatedClaim, deadline: float) -> PreparedClaim:
        if not claim.allocations:
            return PreparedClaim(ref=claim.ref, shares=())
        operations.enter(Stage.RESOLVE)
        catalog = self._cards.wait_for_catalog(claim.ref, deadline)
        self._cards.check_present(
            claim.ref, (allocation.device for allocation in claim.allocations)
        )
        pods = ClaimPods(self._pods, claim, deadline=deadline)
        policies = self._share_policies.of_claim(claim, pods, node=catalog.node)
        together = self._shared_containers.read(claim, policies, pods)
        offer = self._offers.offer(catalog, {allocation.device for allocation in claim.allocations})
        # Slow if the enforcer is dead, so before the step of the ledger.
        signs = self._required.of_node() if self._required else None
        operations.enter(Stage.ADMIT)
        admitted = self._admission.admit(
            claim, policies, together, catalog=catalog, offer=offer, signs=signs
        )
        operations.enter(Stage.WRITE)
        self._division.project(admitted.changed)
        return self._recorded.write_files(admitted)

    def _unprepare_one(self, ref: ClaimRef, deadline: float) -> None:
        try:
            claims.checked_uid(ref)
        except ClaimError:
            return  # nothing was ever prepared under such a UID
        self._reads.forget(ref.uid)
        with self._locks.locked(ref, deadline):
            self._withdraw(ref)

    def _withdraw(self, ref: ClaimRef) -> None:
        self._reads.forget(ref.uid)
        self._withdrawal.withdraw(ref)
