"""Observer of this node: builds the view that the status page, its JSON and the metrics show.

It reads what the loops have found, and asks neither the API server nor the NVIDIA driver. Two
classes keep what nobody else would: the last answers of the API server, and the last operations on
claims. Whoever asks within a second of the last view gets that one, so that frequent readers cost
no work.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims import use
from tensorfusion_dra.core.claims.operation import EndedOperation
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.use import NodeUse
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.observed import node_view
from tensorfusion_dra.core.observed.node_view import (
    ApiServerView,
    LedgerView,
    NodeView,
    PublishingView,
    RegistrationView,
)
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.driver.status import utc_now

_REUSED_SECONDS: Final = 1.0
_SERVER_ERRORS: Final = 500
_REFUSALS: Final = frozenset({401, 403, 429})
"""Errors that concern this driver as a whole; the others, such as 404, are answers."""
MOST_KEPT: Final = 60
"""Enough for a burst of pods; an older one is in the log."""


class ApiServerState:
    """Last success and last error; implements ports.Exchanges."""

    def __init__(self, *, now: Callable[[], datetime] = utc_now) -> None:
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
            self._record_error(error)
        else:
            self.watch_event()

    def unanswered(self, method: str, error: str, *, path: str = "") -> None:
        self._record_error(error)

    def watch_event(self) -> None:
        with self._lock:
            self._view = replace(self._view, last_success_at=self._now())

    def _record_error(self, error: str) -> None:
        with self._lock:
            self._view = replace(self._view, last_error_at=self._now(), last_error=error)


class RecentOperations:
    """Ring of the last operations; implements driver.operations.OperationObserver."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _kept
        self._kept: deque[EndedOperation] = deque(maxlen=MOST_KEPT)

    def operation_ended(self, operation: EndedOperation) -> None:
        with self._lock:
            self._kept.appendleft(operation)

    def operations(self) -> Sequence[EndedOperation]:
        """Return the operations, the newest first."""
        with self._lock:
            return tuple(self._kept)


@dataclass(slots=True, kw_only=True)
class NodeObserver:
    """Builder of views of this node; safe for all threads.

    Attributes:
        node: The node's name.
        version: Of this driver.
        claims: All prepared claims. Raises DriverError if the ledger cannot be read, after waiting
            for it; the other functions return at once, from any thread.
        current_verdicts: The verdicts about each claim's shares, by claim UID.
        use: Who uses the cards.
        enforcer: The verdict about the node's enforcer; None if there is none.
        operations: Finished prepares and unprepares, the newest first.
        now: Returns the wall clock's time.
        clock: In seconds, for the age of the last view.
    """

    node: str
    version: str
    catalog: DeviceCatalog
    claims: Callable[[], Sequence[PreparedClaim]]
    current_verdicts: Callable[[], Mapping[str, Sequence[CurrentVerdict]]] = dict
    use: Callable[[], NodeUse] = lambda: use.NOTHING
    enforcer: Callable[[], CurrentVerdict | None] = lambda: None
    registration: Callable[[], RegistrationView] = RegistrationView
    api_server: Callable[[], ApiServerView] = ApiServerView
    publishing: Callable[[], PublishingView] = PublishingView
    ledger: Callable[[], LedgerView] = LedgerView
    operations: Callable[[], Sequence[EndedOperation]] = tuple
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    _started_at: datetime = field(init=False)
    _lock: Lock = field(init=False, default_factory=Lock)  # guards all below
    _view: NodeView | None = field(init=False, default=None)
    _built: float = field(init=False, default=-math.inf)
    _claims: Sequence[PreparedClaim] = field(init=False, default=())

    def __post_init__(self) -> None:
        self._started_at = self.now()

    def view(self) -> NodeView:
        """Return the node as it was at most a second ago."""
        with self._lock:
            if self._view is None or self.clock() - self._built > _REUSED_SECONDS:
                self._view = self._observed()
                self._built = self.clock()
            return self._view

    def _observed(self) -> NodeView:
        trouble = ""
        try:
            self._claims = self.claims()
        except DriverError as error:
            trouble = str(error)
        catalog = self.catalog.current()
        devices = catalog.by_name() if catalog else {}
        current_verdicts, use = self.current_verdicts(), self.use()
        return NodeView(
            node=self.node,
            pool=catalog.node.pool if catalog else "",
            version=self.version,
            started_at=self._started_at,
            observed_at=self.now(),
            registration=self.registration(),
            api_server=self.api_server(),
            publishing=self.publishing(),
            ledger=self.ledger(),
            enforcer=self.enforcer(),
            cards=()
            if catalog is None
            else node_view.cards(
                catalog.devices,
                self._claims,
                unhealthy=catalog.unhealthy,
                absent=catalog.absent,
                xids=self.catalog.xids,
                foreign=use.foreign,
            ),
            cards_missing="" if catalog else self.catalog.reason_missing(),
            left_out=catalog.left_out if catalog else (),
            shares=tuple(
                view
                for claim in sorted(self._claims, key=lambda each: (str(each.ref), each.ref.uid))
                for view in node_view.shares(
                    claim,
                    devices,
                    current_verdicts.get(claim.ref.uid, ()),
                    use.shares.get(claim.ref.uid, ()),
                )
            ),
            shares_error=trouble,
            use_error=use.trouble,
            operations=tuple(self.operations()),
        )
