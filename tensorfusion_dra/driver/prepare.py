"""From an allocated claim to a CDI spec, and back."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from tensorfusion_dra.core import access, tenancy
from tensorfusion_dra.core import claim as claims
from tensorfusion_dra.core.access import CardAccess, SharedAccess
from tensorfusion_dra.core.admission import Local, admit
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.device import Device
from tensorfusion_dra.core.errors import ClaimError, DriverError, FatalError, RetryableError
from tensorfusion_dra.core.prepared import PreparedClaim
from tensorfusion_dra.core.share_parameters import Qos
from tensorfusion_dra.core.tenancy import Rules
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader
from tensorfusion_dra.driver.claim_locks import ClaimLocks
from tensorfusion_dra.driver.ports import (
    Claims,
    DeviceNodes,
    DriverFiles,
    Ledger,
    LedgerTransaction,
)
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.share_terms import ShareTerms
from tensorfusion_dra.driver.status import StatusReporter

log = structlog.get_logger()

Outcome = TypeVar("Outcome")

_FIRST_READ_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one claim could not be prepared or unprepared; the kubelet shows the text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the driver needs of the machine to hand out a card.

    Attributes:
        enforcer: The name of what enforces the limits of new claims.
        rules: For limits above requests.
    """

    device_nodes: DeviceNodes
    driver_files: DriverFiles
    enforcer: str
    rules: Rules


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
        self._locks = ClaimLocks()

    def prepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, PreparedClaim | Failure]:
        """What became of each claim, by UID; one claim's failure costs no other.

        Args:
            deadline: On time.monotonic()'s clock; what is not done by then has failed.

        Raises:
            FatalError: The ledger is damaged.
        """
        return _each("claim_prepared", refs, lambda ref: self._prepare_one(ref, deadline))

    def unprepare(
        self, refs: Iterable[ClaimRef], *, deadline: float
    ) -> Mapping[str, Failure | None]:
        """What became of each claim, by UID; None is success, also for a claim never prepared.

        The claim may be gone or replaced at the API server by now, so nothing is asked there.

        Raises:
            FatalError: The ledger is damaged.
        """
        return _each("claim_unprepared", refs, lambda ref: self._unprepare_one(ref, deadline))

    def _prepare_one(self, ref: ClaimRef, deadline: float) -> PreparedClaim:
        claims.checked_ref(ref)
        with self._locks.held(ref, deadline):
            record = self._ledger.get(ref.uid)
            if record is None:
                record = self._admitted(ref, deadline)
            else:
                self._check_present(ref, (share.device for share in record.shares))
                record = self._with_todays_access(record)
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
            claim, qos=Qos(catalog.node.qos), wait_seconds=deadline - time.monotonic()
        )
        local = self._local(catalog, {allocation.device for allocation in claim.allocations})
        with self._ledger.transaction() as step:
            admission = admit(claim, terms, local, step.claims_on(local.access))
            self._projection.check(admission.claim)
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
        self._project_others(admission.changed)
        return admission.claim

    def _check_present(self, ref: ClaimRef, wanted: Iterable[str]) -> None:
        """A card that is unhealthy and there is handed out to whom the scheduler gave it: that
        claim tolerates the taint, or was allocated before. One that is away is of no use."""
        catalog = self._catalog.current()
        if catalog is None:
            return
        for device in wanted:
            if device in catalog.absent:
                text = catalog.sick[device].worst.text
                raise RetryableError(f"claim {ref}: {device}: {text}, expected a working GPU")

    def _projected(self, record: PreparedClaim) -> PreparedClaim:
        """The newest record, projected: another claim's step may have changed it meanwhile."""
        with self._ledger.transaction() as step:
            current = step.get(record.ref.uid) or record
            self._projection.ensure(current)
        return current

    def _unprepare_one(self, ref: ClaimRef, deadline: float) -> None:
        try:
            claims.checked_ref(ref)
        except ClaimError:
            return  # nothing was ever prepared under such a UID
        with self._locks.held(ref, deadline):
            changed: Sequence[PreparedClaim] = ()
            with self._ledger.transaction() as step:
                record = step.get(ref.uid)
                # Inside the transaction, so that no other step writes the files again meanwhile.
                # A crash after it leaves a record without files, which is prepared or unprepared
                # again; files without a record would be orphans.
                self._projection.remove(ref.uid, record)
                if record is not None:
                    step.remove(ref.uid)
                    changed = self._regranted(step, record)
                    for other in changed:
                        step.put(other)
            self._status.forget(ref.uid)
            self._project_others(changed)

    def _regranted(self, step: LedgerTransaction, gone: PreparedClaim) -> Sequence[PreparedClaim]:
        """Claims whose memory limits grow now that another is gone."""
        catalog = self._catalog.current()
        if catalog is None:
            return ()
        left = {share.device for share in gone.shares}
        devices = {name: d for name, d in catalog.by_name().items() if name in left}
        staying = step.claims_on(devices)
        regranted = tenancy.regranted(staying, devices, self._host.rules)
        return [new for new, old in zip(regranted, staying, strict=True) if new != old]

    def _project_others(self, changed: Sequence[PreparedClaim]) -> None:
        """Tells the hypervisor the new limits of claims that are prepared already."""
        for record in changed:
            with self._ledger.transaction() as step:
                # By now it may be unprepared, or changed once more.
                current = step.get(record.ref.uid)
                if current is None:
                    continue
                try:
                    self._projection.ensure(current)
                    self._status.report(current)
                except RetryableError as error:
                    # Its own next call, or recovery, writes them.
                    log.warning("limits_not_told", claim=str(record.ref), error=str(error))

    def _readable_catalog(self, ref: ClaimRef, deadline: float) -> Catalog:
        """Waits a moment after the start: a kubelet that is refused asks again in a minute."""
        seconds = min(_FIRST_READ_SECONDS, deadline - time.monotonic())
        self._catalog.wait_changed(None, seconds=max(0.0, seconds), stopped=lambda: False)
        catalog = self._catalog.current()
        if catalog is None:
            raise RetryableError(f"claim {ref}: {self._catalog.awaited()}")
        return catalog

    def _local(self, catalog: Catalog, wanted: set[str]) -> Local:
        cards = [device for device in catalog.devices if device.name in wanted]
        return Local(
            pool=catalog.node.pool,
            devices=catalog.by_name(),
            access={device.name: self._access(device) for device in cards},
            shared_access=self._shared_access(cards),
            enforcer=self._host.enforcer,
            rules=self._host.rules,
        )

    def _access(self, device: Device) -> CardAccess:
        if device.gpu.simulated:
            return CardAccess()
        if device.gpu.minor is None:
            raise RetryableError(f"{device.name}: the driver tells no minor number, expected one")
        return CardAccess(
            device_nodes=self._host.device_nodes.of_card(device.gpu.minor),
            toolkit_device=self._host.driver_files.toolkit_device(device.gpu.uuid),
        )

    def _shared_access(self, cards: Sequence[Device]) -> SharedAccess:
        """What every container with one of these cards needs besides the card's own nodes."""
        real = [device for device in cards if not device.gpu.simulated]
        if not real:
            return SharedAccess()
        # Either NVIDIA's toolkit brings the driver's libraries, or mounts do; a container with
        # neither could not use its card, and this fails.
        by_toolkit = all(self._host.driver_files.toolkit_device(d.gpu.uuid) for d in real)
        return SharedAccess(
            device_nodes=self._host.device_nodes.common(),
            driver_mounts=() if by_toolkit else self._host.driver_files.mounts(),
        )

    def _with_todays_access(self, record: PreparedClaim) -> PreparedClaim:
        """A reboot may have given a card another minor number, or the driver other files."""
        catalog = self._catalog.current()
        if catalog is None:
            return record
        local = self._local(catalog, {share.device for share in record.shares})
        if not local.access:
            return record
        with self._ledger.transaction() as step:
            # Read again: another claim's step may have changed its limits meanwhile.
            current = step.get(record.ref.uid) or record
            today = access.refreshed(current, local.access, local.shared_access)
            if today != current:
                step.put(today)
        return today


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
