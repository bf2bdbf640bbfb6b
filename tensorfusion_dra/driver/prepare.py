"""From an allocated claim to a CDI spec, and back."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims import confirmation
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef, PodRef
from tensorfusion_dra.core.claims.fit import fit
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, NoRoomError
from tensorfusion_dra.driver import local_cards, outcomes
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.claim_locks import ClaimLocks
from tensorfusion_dra.driver.companions import Companions
from tensorfusion_dra.driver.local_cards import LocalCards
from tensorfusion_dra.driver.node_offers import NodeOffers
from tensorfusion_dra.driver.outcomes import Failure
from tensorfusion_dra.driver.ports.cluster import Claims
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.recent_reads import RecentReads
from tensorfusion_dra.driver.share_policies import SharePolicyReader
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.driver.tenants import Tenants
from tensorfusion_dra.state.ledger import Ledger

log = structlog.get_logger()


class Preparer:
    """Prepares and unprepares claims; calls may overlap.

    Attributes:
        tenants: The claims that it prepared, each beside the others.
    """

    def __init__(
        self,
        claims_at_server: Claims,
        ledger: Ledger,
        projection: Projection,
        catalog: CatalogReader,
        *,
        offers: NodeOffers,
        share_policies: SharePolicyReader,
        status: StatusReporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare nothing yet.

        Args:
            clock: In seconds, for the age of what was read of claims.
        """
        self._claims = claims_at_server
        self._ledger = ledger
        self._projection = projection
        self._cards = LocalCards(catalog, offers, ledger)
        self._host = offers
        self._share_policies = share_policies
        self._status = status
        self.tenants: Final = Tenants(
            ledger=ledger,
            projection=projection,
            catalog=catalog,
            rules=offers.rules,
            status=status,
        )
        self._companions = Companions(
            projection=projection,
            fixed=offers.rules.fixed(offers.enforcer),
            pods=share_policies.pods,
        )
        self._locks = ClaimLocks()
        self._reads = RecentReads(clock=clock)

    def kubelet_asked(self) -> None:
        """Note that a kubelet asked who this is: it may have been restarted, see RecentReads."""
        self._reads.forget_all()

    def prepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, PreparedClaim | Failure]:
        """What became of each claim, by UID; one claim's failure costs no other.

        Args:
            deadline: On time.monotonic()'s clock; what is not done by then has failed.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        return outcomes.of_each(
            "claim_prepared", refs, lambda ref: self._prepare_one(ref, deadline)
        )

    def unprepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, Failure | None]:
        """What became of each claim, by UID; None is success, also for a claim never prepared.

        The claim may be gone or replaced at the API server by now, so nothing is asked there.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        return outcomes.of_each(
            "claim_unprepared", refs, lambda ref: self._unprepare_one(ref, deadline)
        )

    def refresh(self, ref: ClaimRef, *, deadline: float) -> None:
        """Redoes what a reboot undid: today's device nodes and mounts, and the files by them.

        Nothing happens to a claim that is unprepared by now.

        Raises:
            ClaimError: Its limits cannot be enforced by the settings of today.
            RetryableError: The cards are not known yet, one of the claim's is gone, or another
                call for the claim is running.
            FatalError: A newer release has changed the ledger.
        """
        with self._locks.held(ref, deadline):
            record = self._ledger.get(ref.uid)
            if record is not None:
                self._projected(self._cards.with_todays_access(record, deadline))

    def release(self, ref: ClaimRef, is_gone: Callable[[], bool], *, deadline: float) -> bool:
        """Unprepare a claim for which the kubelet does not ask; False if it is not gone.

        Args:
            ref: The claim.
            is_gone: Asked while no call for the claim can be running.
            deadline: On time.monotonic()'s clock.

        Raises:
            RetryableError: It could not be said or done now.
            FatalError: A newer release has changed the ledger.
        """
        with self._locks.held(ref, deadline):
            gone = is_gone()
            if gone:
                self._withdraw(ref)
            return gone

    def show_trouble(self, record: PreparedClaim, text: str) -> None:
        """Show in the claim's status why its limits are not enforced; "" takes it back."""
        self._status.report(record, trouble=text)

    def _prepare_one(self, ref: ClaimRef, deadline: float) -> PreparedClaim:
        claims.checked_ref(ref)
        with self._locks.held(ref, deadline):
            found = self._recorded_or_allocated(ref, deadline)
            if isinstance(found, AllocatedClaim):
                record = self._admitted(found, deadline)
            else:
                self._cards.check_present(ref, (share.device for share in found.shares))
                record = self._cards.with_todays_access(found, deadline)
            # The record is the truth and the files a projection of it: after a crash between
            # the two, recovery or the next call writes the files.
            record = self._projected(record)
            self._status.report(record, trouble="")
            return record

    def _recorded_or_allocated(
        self, ref: ClaimRef, deadline: float
    ) -> PreparedClaim | AllocatedClaim:
        """The claim's record if it is of the present allocation, else that allocation.

        A record of an earlier allocation is withdrawn first: the scheduler has given its share
        back, and the kubelet will not unprepare it.

        Raises:
            ClaimError: The claim is gone, was replaced, or is not allocated.
            RetryableError: The claim cannot be read now. Then no record answers either: the kubelet
                read the claim just before it called, so this is no outage of the API server.
        """
        record = self._ledger.get(ref.uid)
        if record is not None and self._reads.covers(ref.uid):
            return record
        began = self._reads.begin()
        # Slow, so before any transaction.
        stored = self._claims.fetch(ref, wait_seconds=deadline - time.monotonic())
        claim = claims.allocated(ref, stored)
        if record is not None and not confirmation.is_of(record, claim):
            log.warning("claim_reallocated", devices=[share.device for share in record.shares])
            self._withdraw(ref)
            record = None
        self._reads.note(ref.uid, began)
        if record is None:
            return claim
        if not {*record.pods} & {*claim.pods}:
            record = self._reserved_for(record, claim.pods)
        return record

    def _reserved_for(self, record: PreparedClaim, pods: Sequence[PodRef]) -> PreparedClaim:
        """The record for other pods: those that shared the claim before are gone by now."""
        if record.pods == (*pods,):
            return record
        with self._ledger.transaction() as step:
            record = replace(local_cards.recorded(step, record), pods=(*pods,))
            step.put(record)
        return record

    def _admitted(self, claim: AllocatedClaim, deadline: float) -> PreparedClaim:
        if not claim.allocations:
            return PreparedClaim(ref=claim.ref, shares=())
        catalog = self._cards.readable(claim.ref, deadline)
        self._cards.check_present(
            claim.ref, (allocation.device for allocation in claim.allocations)
        )
        policies = self._share_policies.of_claim(
            claim, node=catalog.node, wait_seconds=deadline - time.monotonic()
        )
        together = self._companions.read(claim, policies, wait_seconds=deadline - time.monotonic())
        offer = self._host.offer(catalog, {allocation.device for allocation in claim.allocations})
        with self._ledger.transaction() as step:
            fitting = fit(claim, policies, offer, step.claims_on(offer.access))
            self._projection.check(fitting.claim)
            self._companions.check(fitting.claim, together, step)
            for record in (fitting.claim, *fitting.changed):
                step.put(record)
        for share in fitting.claim.shares:
            if share.clamped and share.limit:
                log.info(
                    "limit_clamped",
                    device=share.device,
                    wanted_bytes=share.wanted_vram_bytes,
                    vram_bytes=share.limit.vram_bytes,
                    wanted_percent=share.wanted_sm_percent,
                    sm_percent=share.limit.sm_percent,
                )
        if len(claim.pods) > 1:
            # One folder and one name for all of them (hack/adr/0012).
            log.info("claim_shared_by_pods", pod=str(claim.pods[0]), pods=len(claim.pods))
        self.tenants.project(fitting.changed)
        return fitting.claim

    def _projected(self, record: PreparedClaim) -> PreparedClaim:
        """The newest record, projected: another claim's step may have changed it meanwhile."""
        if not record.shares:
            return record
        with self._ledger.transaction() as step:
            current = local_cards.recorded(step, record)
            self._projection.ensure(current)
        return current

    def _unprepare_one(self, ref: ClaimRef, deadline: float) -> None:
        try:
            claims.checked_uid(ref)
        except ClaimError:
            return  # nothing was ever prepared under such a UID
        self._reads.forget(ref.uid)
        with self._locks.held(ref, deadline):
            self._withdraw(ref)

    def _withdraw(self, ref: ClaimRef) -> None:
        self._reads.forget(ref.uid)
        try:
            changed = self._removed(ref)
        except NoRoomError:
            self._ledger.make_room()
            changed = self._removed(ref)
        self._status.forget(ref.uid)
        self.tenants.project(changed)

    def _removed(self, ref: ClaimRef) -> Sequence[PreparedClaim]:
        """Remove record and files; return the other claims whose limits changed by that."""
        with self._ledger.transaction() as step:
            record = step.get(ref.uid)
            # Inside the transaction, so that no other step writes the files again meanwhile.
            # A crash after it leaves a record without files, which is prepared or unprepared
            # again; files without a record would be orphans.
            pods = record.pods if record else ()
            self._projection.remove(ref.uid, record, of_same_pods=lambda: step.claims_of_pods(pods))
            if record is None:
                return ()
            step.remove(ref.uid)
            for other in (changed := self.tenants.regranted(step, record)):
                step.put(other)
        return changed
