"""From an allocated claim to a CDI spec, and back."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from tensorfusion_dra.core import admission, cdi
from tensorfusion_dra.core import claim as claims
from tensorfusion_dra.core.admission import Local
from tensorfusion_dra.core.claim import AllocatedClaim, ClaimRef
from tensorfusion_dra.core.device import Device
from tensorfusion_dra.core.errors import ClaimError, DriverError, FatalError, RetryableError
from tensorfusion_dra.core.prepared import PreparedClaim
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader
from tensorfusion_dra.driver.claim_locks import ClaimLocks
from tensorfusion_dra.driver.ports import Claims, DeviceNodes, Ledger, Specs

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
        specs: Specs,
        catalog: CatalogReader,
        device_nodes: DeviceNodes,
    ) -> None:
        self._claims = claims_at_server
        self._ledger = ledger
        self._specs = specs
        self._catalog = catalog
        self._device_nodes = device_nodes
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
                record = self._with_todays_nodes(record)
            # The record is the truth and the spec a projection of it: after a crash between
            # the two, recovery or the next call writes the spec.
            spec = cdi.spec(record)
            if spec is not None:
                self._specs.ensure(ref.uid, spec)
            return record

    def _admitted(self, ref: ClaimRef, deadline: float) -> PreparedClaim:
        # Slow, so before the transaction.
        stored = self._claims.fetch(ref, wait_seconds=deadline - time.monotonic())
        claim = claims.allocated(ref, stored)
        if not claim.allocations:
            return PreparedClaim(ref=ref, shares=())
        local = self._local(claim, deadline)
        with self._ledger.transaction() as step:
            record = admission.admit(claim, local, step.shares_on(local.device_nodes))
            step.put(record)
        return record

    def _unprepare_one(self, ref: ClaimRef, deadline: float) -> None:
        try:
            claims.checked_ref(ref)
        except ClaimError:
            return  # nothing was ever prepared under such a UID
        with self._locks.held(ref, deadline):
            # In this order a crash leaves a record without spec, which is prepared or
            # unprepared again; a spec without record would be an orphan.
            self._specs.remove(ref.uid)
            self._ledger.remove(ref.uid)

    def _local(self, claim: AllocatedClaim, deadline: float) -> Local:
        catalog = self._first_catalog(deadline)
        if catalog is None:
            raise RetryableError(f"claim {claim.ref}: this node's GPUs could not be read yet")
        wanted = {allocation.device for allocation in claim.allocations}
        return Local(
            pool=catalog.node.pool,
            devices=catalog.by_name(),
            device_nodes=self._nodes_of(catalog, wanted),
            common_nodes=self._common_nodes(catalog, wanted),
        )

    def _first_catalog(self, deadline: float) -> Catalog | None:
        """Waits a moment after the start: a kubelet that is refused asks again in a minute."""
        seconds = min(_FIRST_READ_SECONDS, deadline - time.monotonic())
        self._catalog.wait_changed(None, seconds=max(0.0, seconds), stopped=lambda: False)
        return self._catalog.current()

    def _with_todays_nodes(self, record: PreparedClaim) -> PreparedClaim:
        catalog = self._catalog.current()
        if catalog is None:
            return record
        held = {share.device for share in record.shares}
        today = record.with_nodes(self._nodes_of(catalog, held), self._common_nodes(catalog, held))
        if today != record:
            with self._ledger.transaction() as step:
                step.put(today)
        return today

    def _nodes_of(self, catalog: Catalog, wanted: set[str]) -> Mapping[str, tuple[str, ...]]:
        return {
            device.name: self._nodes_of_card(device)
            for device in catalog.devices
            if device.name in wanted
        }

    def _nodes_of_card(self, device: Device) -> tuple[str, ...]:
        if device.gpu.simulated:
            return ()
        if device.gpu.minor is None:
            raise RetryableError(f"{device.name}: the driver tells no minor number, expected one")
        return self._device_nodes.of_card(device.gpu.minor)

    def _common_nodes(self, catalog: Catalog, wanted: set[str]) -> tuple[str, ...]:
        real = any(not d.gpu.simulated for d in catalog.devices if d.name in wanted)
        return self._device_nodes.common() if real else ()


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
