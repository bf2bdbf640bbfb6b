"""From an allocated claim to a CDI spec, and back."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from tensorfusion_dra.core import access
from tensorfusion_dra.core import claim as claims
from tensorfusion_dra.core.admission import admit
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.errors import (
    ClaimError,
    DriverError,
    FatalError,
    NoRoomError,
    RetryableError,
)
from tensorfusion_dra.core.prepared import PreparedClaim
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader
from tensorfusion_dra.driver.claim_locks import ClaimLocks
from tensorfusion_dra.driver.companions import Companions
from tensorfusion_dra.driver.host import Host
from tensorfusion_dra.driver.ports.cluster import Claims
from tensorfusion_dra.driver.ports.state import Ledger, LedgerTransaction
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.share_terms import ShareTerms
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.driver.tenants import Tenants

log = structlog.get_logger()

Outcome = TypeVar("Outcome")

_FIRST_READ_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one claim could not be prepared or unprepared; the kubelet shows the text."""

    text: str


class Preparer:
    """Prepares and unprepares claims; calls may overlap."""

    def __init__(
        self,
        claims_at_server: Claims,
        ledger: Ledger,
        projection: Projection,
        catalog: CatalogReader,
        *,
        host: Host,
        share_terms: ShareTerms,
        status: StatusReporter,
    ) -> None:
        self._claims = claims_at_server
        self._ledger = ledger
        self._projection = projection
        self._catalog = catalog
        self._host = host
        self._share_terms = share_terms
        self._status = status
        self._tenants = Tenants(
            ledger=ledger,
            projection=projection,
            catalog=catalog,
            rules=host.rules,
            status=status,
        )
        self._companions = Companions(
            projection=projection, fixed=host.rules.fixed, pods=share_terms.pods
        )
        self._locks = ClaimLocks()

    def prepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, PreparedClaim | Failure]:
        """What became of each claim, by UID; one claim's failure costs no other.

        Args:
            deadline: On time.monotonic()'s clock; what is not done by then has failed.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        return _each("claim_prepared", refs, lambda ref: self._prepare_one(ref, deadline))

    def unprepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, Failure | None]:
        """What became of each claim, by UID; None is success, also for a claim never prepared.

        The claim may be gone or replaced at the API server by now, so nothing is asked there.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        return _each("claim_unprepared", refs, lambda ref: self._unprepare_one(ref, deadline))

    def refresh(self, ref: ClaimRef, *, deadline: float) -> None:
        """Redoes what a reboot undid: today's device nodes and mounts, and the files by them.

        Nothing happens to a claim that is unprepared by now.

        Raises:
            RetryableError: The cards are not known yet, one of the claim's is gone, or another
                call for the claim is running.
            FatalError: A newer release has changed the ledger.
        """
        with self._locks.held(ref, deadline):
            record = self._ledger.get(ref.uid)
            if record is not None:
                self._projected(self._with_todays_access(record, deadline))

    def release(self, ref: ClaimRef, is_gone: Callable[[], bool], *, deadline: float) -> bool:
        """Unprepares a claim for which the kubelet does not ask; False if it is not gone.

        Args:
            is_gone: Asked while no call for the claim can be running.

        Raises:
            RetryableError: It could not be said or done now.
            FatalError: A newer release has changed the ledger.
        """
        with self._locks.held(ref, deadline):
            gone = is_gone()
            if gone:
                self._withdraw(ref)
            return gone

    def _prepare_one(self, ref: ClaimRef, deadline: float) -> PreparedClaim:
        claims.checked_ref(ref)
        with self._locks.held(ref, deadline):
            record = self._ledger.get(ref.uid)
            if record is None:
                record = self._admitted(ref, deadline)
            else:
                self._check_present(ref, (share.device for share in record.shares))
                record = self._with_todays_access(record, deadline)
            # The record is the truth and the files a projection of it: after a crash between
            # the two, recovery or the next call writes the files.
            record = self._projected(record)
            self._status.report(record)
            return record

    def _admitted(self, ref: ClaimRef, deadline: float) -> PreparedClaim:
        # Slow, so before the transaction.
        stored = self._claims.fetch(ref, wait_seconds=deadline - time.monotonic())
        claim = claims.allocated(ref, stored)
        if not claim.allocations:
            return PreparedClaim(ref=ref, shares=())
        catalog = self._readable_catalog(claim.ref, deadline)
        self._check_present(ref, (allocation.device for allocation in claim.allocations))
        terms = self._share_terms.of_claim(
            claim, node=catalog.node, wait_seconds=deadline - time.monotonic()
        )
        together = self._companions.read(claim, terms, wait_seconds=deadline - time.monotonic())
        local = self._host.local(catalog, {allocation.device for allocation in claim.allocations})
        with self._ledger.transaction() as step:
            admission = admit(claim, terms, local, step.claims_on(local.access))
            self._projection.check(admission.claim)
            self._companions.check(admission.claim, together, step)
            for record in (admission.claim, *admission.changed):
                step.put(record)
        for share in admission.claim.shares:
            if share.clamped and share.limit:
                log.info(
                    "limit_clamped",
                    device=share.device,
                    wanted_bytes=share.wanted_vram_bytes,
                    vram_bytes=share.limit.vram_bytes,
                )
        if len(claim.pods) > 1:
            # One folder and one name for all of them (hack/adr/0012).
            log.info("claim_shared_by_pods", pod=str(claim.pods[0]), pods=len(claim.pods))
        self._tenants.project(admission.changed)
        return admission.claim

    def _check_present(self, ref: ClaimRef, wanted: Iterable[str]) -> None:
        """Refuse a card that is gone. The scheduler decides on one that is there and unhealthy."""
        catalog = self._catalog.current()
        if catalog is None:
            return
        for device in wanted:
            if device in catalog.absent:
                text = catalog.sick[device].worst.text
                raise RetryableError(f"claim {ref}: {device}: {text}, expected a working GPU")

    def _projected(self, record: PreparedClaim) -> PreparedClaim:
        """The newest record, projected: another claim's step may have changed it meanwhile."""
        if not record.shares:
            return record
        with self._ledger.transaction() as step:
            current = _kept(step, record)
            self._projection.ensure(current)
        return current

    def _unprepare_one(self, ref: ClaimRef, deadline: float) -> None:
        try:
            claims.checked_uid(ref)
        except ClaimError:
            return  # nothing was ever prepared under such a UID
        with self._locks.held(ref, deadline):
            self._withdraw(ref)

    def _withdraw(self, ref: ClaimRef) -> None:
        try:
            changed = self._removed(ref)
        except NoRoomError:
            self._ledger.make_room()
            changed = self._removed(ref)
        self._status.forget(ref.uid)
        self._tenants.project(changed)

    def _removed(self, ref: ClaimRef) -> Sequence[PreparedClaim]:
        """Remove record and files; return the other claims whose limits changed by that."""
        with self._ledger.transaction() as step:
            record = step.get(ref.uid)
            # Inside the transaction, so that no other step writes the files again meanwhile.
            # A crash after it leaves a record without files, which is prepared or unprepared
            # again; files without a record would be orphans.
            self._projection.remove(ref.uid, record)
            if record is None:
                return ()
            step.remove(ref.uid)
            for other in (changed := self._tenants.regranted(step, record)):
                step.put(other)
        return changed

    def _readable_catalog(self, ref: ClaimRef, deadline: float) -> Catalog:
        """Waits a moment after the start: a kubelet that is refused asks again in a minute."""
        seconds = max(0.0, min(_FIRST_READ_SECONDS, deadline - time.monotonic()))
        self._catalog.wait_changed(None, seconds=seconds, stopped=lambda: False)
        catalog = self._catalog.current()
        if catalog is None:
            raise RetryableError(f"claim {ref}: {self._catalog.awaited()}")
        return catalog

    def _with_todays_access(self, record: PreparedClaim, deadline: float) -> PreparedClaim:
        """A reboot may have given a card another minor number, or the driver other files."""
        rebooted = record.boot_id != self._host.boot_id
        if rebooted:
            catalog = self._readable_catalog(record.ref, deadline)
        else:
            known = self._catalog.current()
            if known is None:
                return record
            catalog = known
        local = self._host.local(catalog, {share.device for share in record.shares})
        missing = sorted({share.device for share in record.shares} - local.access.keys())
        if rebooted and missing:
            # The nodes in the record may be another card's by now.
            raise RetryableError(f"claim {record.ref}: {', '.join(missing)}: gone since a reboot")
        if not local.access:
            return record
        with self._ledger.transaction() as step:
            # Read again: another claim's step may have changed its limits meanwhile.
            current = _kept(step, record)
            today = access.refreshed(
                current, local.access, local.shared_access, boot_id=local.boot_id
            )
            if today != current:
                step.put(today)
        return today


def _kept(step: LedgerTransaction, record: PreparedClaim) -> PreparedClaim:
    """The record as it is now.

    Raises:
        RetryableError: Another instance unprepared the claim meanwhile.
    """
    current = step.get(record.ref.uid)
    if current is None:
        raise RetryableError(f"claim {record.ref}: it was unprepared meanwhile")
    return current


def _each(
    event: str, refs: Iterable[ClaimRef], step: Callable[[ClaimRef], Outcome]
) -> dict[str, Outcome | Failure]:
    """The outcome of each claim by UID, with one closing line in the log for each."""
    outcomes: dict[str, Outcome | Failure] = {}
    for ref in refs:
        start = time.monotonic()
        with bound_contextvars(claim=str(ref), claim_uid=ref.uid):
            try:
                outcomes[ref.uid] = step(ref)
            except FatalError:
                raise
            except DriverError as error:
                outcomes[ref.uid] = Failure(str(error))
                log.warning(
                    event.replace("claim_", "claim_not_"), error=str(error), seconds=_since(start)
                )
            else:
                log.info(event, seconds=_since(start))
    return outcomes


def _since(start: float) -> float:
    return round(time.monotonic() - start, 4)
