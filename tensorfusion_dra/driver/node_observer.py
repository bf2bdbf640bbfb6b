"""Observer of this node: builds the view that the status page, its JSON and the metrics show.

It reads what the loops have found, and asks neither the API server nor the NVIDIA driver. Three
classes keep what nobody else would: the last answers of the API server, the state of publishing,
and the last operations on claims. Whoever asks within a second of the last view gets that one, so
that frequent readers cost no work.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims.operation import EndedOperation
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import Standing
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice, WriteReason
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.observed import node_view
from tensorfusion_dra.core.observed.node_view import (
    ApiServerView,
    LedgerView,
    NodeView,
    OperationView,
    PublishingView,
    RegistrationView,
    ShareView,
)
from tensorfusion_dra.driver.catalog import Catalog, DeviceCatalog

_REUSED_SECONDS: Final = 1.0
_SERVER_ERRORS: Final = 500
_REFUSALS: Final = frozenset({401, 403, 429})
"""Errors that concern this driver as a whole; the others, such as 404, are answers."""
MOST_KEPT: Final = 60
"""Enough for a burst of pods; an older one is in the log."""


class ApiServerState:
    """Last success and last error; implements ports.Exchanges."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Start without any request.

        Args:
            now: Returns the wall clock's time.
        """
        self._now = now
        self._lock = Lock()  # guards changes of _view
        self._view = ApiServerView()

    def view(self) -> ApiServerView:
        """Return the present state."""
        return self._view

    def answered(self, method: str, status: int, error: str, *, path: str = "") -> None:
        if status >= _SERVER_ERRORS or status in _REFUSALS:
            self._note_error(error)
        else:
            self.heard()

    def unanswered(self, method: str, error: str, *, path: str = "") -> None:
        self._note_error(error)

    def heard(self) -> None:
        with self._lock:
            self._view = replace(self._view, last_success_at=self._now())

    def _note_error(self, error: str) -> None:
        with self._lock:
            self._view = replace(self._view, last_error_at=self._now(), last_error=error)


class PublishingState:
    """State of the loop that publishes devices; the loop notes changes, any thread may read view().

    A round that writes calls begin_write() once and note_write() after each write. Example: a card
    becomes unhealthy, and the first write fails. The next round writes the same slice for the
    reason `retry`, and the write is counted there.
    """

    def __init__(self) -> None:
        """Start before the first round."""
        self._view = PublishingView()  # replaced as a whole, so that reading needs no lock
        self._wanted: Sequence[Slice] = ()  # as they were last found or made stored
        self._writing: WriteReason | None = None  # from begin_write() until confirm()

    def view(self) -> PublishingView:
        """Return the present state."""
        return self._view

    def confirm(self, wanted: Sequence[Slice], *, generation: int, written: bool) -> None:
        """Note that the stored slices are the wanted ones.

        Args:
            wanted: All slices of the pool.
            generation: Of the pool as it is stored.
            written: True if this round wrote slices.
        """
        now = datetime.now(UTC)
        self._wanted, self._writing = wanted, None
        self._view = replace(
            self._view,
            generation=generation,
            slices=len(wanted),
            devices=sum(len(item["spec"]["devices"]) for item in wanted),
            confirmed_at=now,
            written_at=now if written else self._view.written_at,
        )

    def begin_write(self, wanted: Sequence[Slice], *, is_repair: bool) -> None:
        """Find out the reason of the writes that follow.

        Args:
            wanted: All slices of the pool.
            is_repair: True if another writer has changed or deleted slices.
        """
        if self._writing is not None:
            self._writing = WriteReason.RETRY  # the writes before were not confirmed
        elif is_repair:
            self._writing = WriteReason.REPAIR
        else:
            self._writing = slices.write_reason(self._wanted, wanted)

    def note_write(self) -> None:
        """Note that a slice was written or deleted."""
        if self._writing is not None:
            writes = dict(self._view.writes)
            writes[self._writing] += 1
            self._view = replace(self._view, writes=writes)

    def note_dropped(self, gates: Iterable[str]) -> None:
        """Note the feature gates that the API server has off."""
        self._view = replace(self._view, dropped_gates=tuple(sorted(gates)))

    def note_right(self, *, has_right: bool) -> None:
        """Note whether this instance has the publishing right."""
        self._view = replace(self._view, has_right=has_right)

    def note_success(self) -> None:
        """Note the end of a round without an error."""
        if self._view.error:
            self._view = replace(self._view, error="", error_since=None)

    def note_failure(self, error: str) -> None:
        """Note a round that failed."""
        since = self._view.error_since or datetime.now(UTC)
        self._view = replace(self._view, error=error, error_since=since)


class RecentOperations:
    """Ring of the last operations; implements driver.operations.OperationObserver."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Keep nothing yet.

        Args:
            now: Returns the wall clock's time.
        """
        self._now = now
        self._lock = Lock()  # guards _kept
        self._kept: deque[OperationView] = deque(maxlen=MOST_KEPT)

    def operation_ended(self, operation: EndedOperation) -> None:
        # Without the prepared claim, whose record would stay in memory with it.
        view = OperationView(
            kind=operation.kind,
            claim=operation.claim,
            ended_at=self._now(),
            seconds=operation.seconds,
            stages=operation.seconds_by_stage,
            last_stage=operation.last_stage,
            result=operation.result,
            error=operation.error,
            from_record=operation.from_record,
        )
        with self._lock:
            self._kept.appendleft(view)

    def views(self) -> Sequence[OperationView]:
        """Return the operations, the newest first."""
        with self._lock:
            return tuple(self._kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a view is made of; each function may be called from any thread.

    Attributes:
        claims: All prepared claims. Raises DriverError if the ledger cannot be read, after waiting
            for it; the other functions return at once.
        standings: The verdicts about each claim's shares, by claim UID.
        enforcer: The verdict about the node's enforcer; None if there is none.
        operations: Finished prepares and unprepares, the newest first.
    """

    catalog: DeviceCatalog
    claims: Callable[[], Sequence[PreparedClaim]]
    standings: Callable[[], Mapping[str, Sequence[Standing]]] = dict
    enforcer: Callable[[], Standing | None] = lambda: None
    registration: Callable[[], RegistrationView] = RegistrationView
    api_server: Callable[[], ApiServerView] = ApiServerView
    publishing: Callable[[], PublishingView] = PublishingView
    ledger: Callable[[], LedgerView] = LedgerView
    operations: Callable[[], Sequence[OperationView]] = tuple


class NodeObserver:
    """Builder of views of this node; safe for all threads."""

    def __init__(
        self,
        sources: Sources,
        *,
        node: str,
        version: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build no view yet.

        Args:
            sources: What it is made of.
            node: The node's name.
            version: Of this driver.
            now: Returns the wall clock's time.
            clock: In seconds, for the age of the last view.
        """
        self._sources = sources
        self._node = node
        self._version = version
        self._now = now
        self._clock = clock
        self._started_at = now()
        self._lock = Lock()  # guards all below; one view is built at a time
        self._view: NodeView | None = None
        self._built = float("-inf")
        self._claims: Sequence[PreparedClaim] = ()

    def view(self) -> NodeView:
        """Return the node as it was at most a second ago."""
        with self._lock:
            if self._view is None or self._clock() - self._built > _REUSED_SECONDS:
                self._view = self._observed()
                self._built = self._clock()
            return self._view

    def _observed(self) -> NodeView:
        sources = self._sources
        trouble = self._read_records()
        catalog = sources.catalog.current()
        return NodeView(
            node=self._node,
            pool=catalog.node.pool if catalog else "",
            version=self._version,
            started_at=self._started_at,
            observed_at=self._now(),
            registration=sources.registration(),
            api_server=sources.api_server(),
            publishing=sources.publishing(),
            ledger=sources.ledger(),
            enforcer=sources.enforcer(),
            cards=()
            if catalog is None
            else node_view.cards(
                catalog.devices,
                self._claims,
                sick=catalog.sick,
                absent=catalog.absent,
                xids=sources.catalog.xids,
            ),
            cards_missing="" if catalog else sources.catalog.reason_missing(),
            left_out=catalog.left_out if catalog else (),
            shares=self._share_views(catalog),
            shares_error=trouble,
            operations=tuple(sources.operations()),
        )

    def _share_views(self, catalog: Catalog | None) -> tuple[ShareView, ...]:
        devices = catalog.by_name() if catalog else {}
        standings = self._sources.standings()
        return tuple(
            view
            for claim in sorted(self._claims, key=lambda each: (str(each.ref), each.ref.uid))
            for view in node_view.shares(claim, devices, standings.get(claim.ref.uid, ()))
        )

    def _read_records(self) -> str:
        """Read the records again; return why they cannot be read, "" if they can."""
        try:
            self._claims = self._sources.claims()
        except DriverError as error:
            return str(error)
        return ""
