"""Watch requests, and the lines that they send."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dra_simulator.api import rendering
from dra_simulator.api.failures import ApiError
from dra_simulator.api.rendering import View
from dra_simulator.api.schema import Schema
from dra_simulator.api.selectors import Selector
from dra_simulator.api.store import Event, Store, Stored

_IDLE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One watch request.

    Attributes:
        namespace: "" for all namespaces.
        since: resourceVersion to continue from; None to begin with the existing objects.
        seconds: Time after which the server ends the watch.
        bookmarks: The client wants BOOKMARK events.
        bookmark_seconds: Interval of bookmarks; the API server sends one a minute.
    """

    store: Store
    schema: Schema
    view: View
    namespace: str
    selector: Selector
    since: int | None
    seconds: float
    bookmarks: bool
    bookmark_seconds: float

    def lines(self) -> Iterator[bytes]:
        """Yield the events as they happen, until the time is over or the store is closed.

        An empty line means that nothing happened for a while, so that the caller can check if the
        client is still connected.
        """
        ends = time.monotonic() + self.seconds
        kind, show = self.view.kind, self.view.stream()
        cursor = self.since
        if cursor is None:
            found, cursor = self.store.listed(kind.storage, self.namespace or None)
            for stored in found:
                if self.selector.chooses(stored.document):
                    yield rendering.event("ADDED", show(stored))
            if self.bookmarks:
                yield self._bookmark(cursor, show, first=True)
        next_bookmark = time.monotonic() + self.bookmark_seconds

        while not self.store.closed:
            wait = min(ends, next_bookmark) - time.monotonic()
            try:
                events, latest = self.store.events_after(
                    kind.storage, cursor, wait_seconds=min(wait, _IDLE_SECONDS)
                )
            except ApiError as error:
                yield self.error_line(error)
                return
            for event in events:
                yield from self._line(event, show)
            if not events:
                yield b""
            cursor = max(cursor, latest)
            now = time.monotonic()
            over = now >= ends
            if now >= next_bookmark or over:
                next_bookmark = now + self.bookmark_seconds
                if self.bookmarks:
                    yield self._bookmark(cursor, show, first=False)
            if over:
                return

    def error_line(self, error: ApiError) -> bytes:
        """Return the event that ends a watch with an error."""
        return rendering.event("ERROR", rendering.text(error.status()))

    def _bookmark(self, latest: int, show: Callable[[Stored], str], *, first: bool) -> bytes:
        stored = rendering.bookmark(self.schema, self.view.kind, latest, first=first)
        return rendering.event("BOOKMARK", show(stored))

    def _line(self, event: Event, show: Callable[[Stored], str]) -> Iterator[bytes]:
        """Yield the event as the selector sees it: an object that no longer matches is DELETED."""
        if self.namespace and event.stored.namespace != self.namespace:
            return
        is_chosen = event.change != "DELETED" and self.selector.chooses(event.stored.document)
        was_chosen = event.before is not None and self.selector.chooses(event.before.document)
        if not is_chosen and not was_chosen:
            return
        shown = event.stored
        if is_chosen:
            change = "MODIFIED" if was_chosen else "ADDED"
        else:
            change = "DELETED"
            if event.change != "DELETED" and event.before is not None:
                shown = event.before.at_version(event.version)
        yield rendering.event(change, show(shown))
