"""Observer of this node: builds the view that the status page, its JSON and the metrics show.

It reads what the loops have found, and asks neither the API server nor the NVIDIA driver. The
records come from a reading of their own, which holds up no call of the kubelet. Whoever asks within
a second of the last view gets that one, so that frequent readers cost no work.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims.enforcement.verdict import Standing
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.observed import cards
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Views of one claim's shares, and what they were made of."""

    claim: PreparedClaim
    standing: Sequence[Standing]
    catalog: Catalog | None
    views: tuple[ShareView, ...]

    def is_of(
        self, claim: PreparedClaim, standing: Sequence[Standing], catalog: Catalog | None
    ) -> bool:
        """Return True if the views are made of these; each is replaced as a whole if it changes."""
        return self.claim is claim and self.standing is standing and self.catalog is catalog


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
        self._shares: dict[str, _Seen] = {}  # by claim UID

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
            else cards.cards(
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
        """Return a view of each share; those of unchanged claims are the last view's."""
        devices = catalog.by_name() if catalog else {}
        standings = self._sources.standings()
        known, self._shares = self._shares, {}
        for claim in sorted(self._claims, key=lambda each: (str(each.ref), each.ref.uid)):
            uid, standing = claim.ref.uid, standings.get(claim.ref.uid, ())
            before = known.get(uid)
            if before is None or not before.is_of(claim, standing, catalog):
                views = cards.shares(claim, devices, standing)
                before = _Seen(claim=claim, standing=standing, catalog=catalog, views=views)
            self._shares[uid] = before
        return tuple(view for seen in self._shares.values() for view in seen.views)

    def _read_records(self) -> str:
        """Read the records again; return why they cannot be read, "" if they can."""
        try:
            self._claims = self._sources.claims()
        except DriverError as error:
            return str(error)
        return ""
