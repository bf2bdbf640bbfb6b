"""A watch that survives every fault of the server and the network, at a bounded request rate.

A list is followed by watches. Each watch continues from the version that the previous one reached:

    list ──> watch ──ended with progress──> watch ── ... ──> list, at least twice an hour
      ^        │
      └────────┴── ended without progress, or failed: after a delay that doubles each time

A watch has made progress if its events reached another version. One that ended without progress may
have missed changes, because the server or a proxy may not deliver events at all. So everything is
listed again. A watch that made progress, or lasted longer than the longest delay, resets the delays
to the first one.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final

import structlog

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.api import Api, StatusError, items, metadata
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.log_throttle import LogThrottle

if TYPE_CHECKING:
    from tensorfusion_dra.cluster.watch_stream import WatchStream

log = structlog.get_logger()

Item = Mapping[str, Any]

_FIRST_DELAY_SECONDS: Final = 0.5
_LONGEST_DELAY_SECONDS: Final = 30.0
_WATCH_SECONDS: Final = 300
_OVERTIME_SECONDS: Final = 60.0
"""Grace for a server that does not end a watch at the requested time."""
_LIST_SECONDS: Final = 1800.0
"""Interval after which everything is listed again, in case events were lost."""
_SILENT_SECONDS: Final = 90.0
"""An API server sends a bookmark every minute."""
_FORBIDDEN: Final = 403
_FORBIDDEN_SECONDS: Final = 60.0
"""Least delay while the right is missing: only an administrator can grant it."""


class Watch:
    """A list of one kind of object, followed by a callback for every change."""

    def __init__(
        self,
        api: Api,
        path: Callable[[], str],
        *,
        selector: str,
        on_list: Callable[[Sequence[Item]], None],
        on_event: Callable[[str, Item], None],
        on_absent: Callable[[], None] | None = None,
        list_limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; no request is sent yet.

        Args:
            path: Returns the path of the collection; it may send a request itself.
            selector: A field selector; empty for all objects.
            on_list: Called with all objects whenever the watch begins again. Anything may have
                changed since the last event, and another server may answer.
            on_event: Called with ``ADDED``, ``MODIFIED`` or ``DELETED``, and the object.
            on_absent: Called if the server does not have this kind; the list is then repeated at
                growing intervals. With None, a missing kind is a failure like any other.
            list_limit: Largest number of objects in a list, for a caller that needs no more.
            clock: In seconds.
        """
        self._api = api
        self._path = path
        self._selector = {"fieldSelector": selector} if selector else {}
        self._on_list = on_list
        self._on_event = on_event
        self._on_absent = on_absent
        self._list_limit = {"limit": str(list_limit)} if list_limit else {}
        self._clock = clock
        self._listed_at = 0.0
        self._reached = ""
        self._stop = Event()
        self._guard = Lock()  # guards _stream
        self._stream: WatchStream | None = None
        self._throttle = LogThrottle()

    def stop(self) -> None:
        """End run()."""
        self._stop.set()
        with self._guard:
            if self._stream is not None:
                self._stream.cut()

    def run(self) -> None:
        """Watch until stopped."""
        backoff = Backoff(
            first_seconds=_FIRST_DELAY_SECONDS, longest_seconds=_LONGEST_DELAY_SECONDS
        )
        absence = Backoff(first_seconds=1, longest_seconds=60)
        version = ""
        while not self._stop.is_set():
            began, self._reached = math.inf, version
            try:
                if not version:
                    version = self._reached = self._listed()
                    absence.succeeded()
                began = self._clock()
                self._watch(version)
                progressed = self._reached != version
                if self._is_healthy(version, began):
                    backoff.succeeded()
                    self._throttle.over()
                delay = backoff.failed()
                version = self._reached if progressed and not self._list_is_due() else ""
            except RetryableError as error:
                if self._is_healthy(version, began):
                    backoff.succeeded()
                version = ""
                if self._on_absent and isinstance(error, StatusError) and error.status == 404:
                    delay = absence.failed()
                    self._on_absent()
                else:
                    delay = backoff.failed(at_least=error.after_seconds)
                    delay = self._log_failure(error, delay)
            self._stop.wait(delay)

    def _is_healthy(self, version: str, began: float) -> bool:
        """Return True if the watch that ended made progress or lasted long enough."""
        return self._reached != version or self._clock() - began >= _LONGEST_DELAY_SECONDS

    def _log_failure(self, error: RetryableError, delay: float) -> float:
        """Log a failure unless it repeats the last one; return the delay, longer after a 403."""
        event = "watch_retried"
        if isinstance(error, StatusError) and error.status == _FORBIDDEN:
            event, delay = "watch_forbidden", max(delay, _FORBIDDEN_SECONDS)
        if not self._stop.is_set() and self._throttle.is_new(str(error)):
            log.warning(event, seconds=round(delay, 1), error=str(error))
        return delay

    def _list_is_due(self) -> bool:
        return self._clock() - self._listed_at >= _LIST_SECONDS

    def _listed(self) -> str:
        path = self._path()
        listed = self._api.call("GET", path, query={**self._selector, **self._list_limit})
        version = metadata(listed).get("resourceVersion")
        found = items(listed, f"GET {path}")
        if not version:
            raise RetryableError(f"GET {path}: found no resourceVersion, expected one")
        self._on_list(found)
        self._listed_at = self._clock()
        return str(version)

    def _watch(self, version: str) -> None:
        """Report the changes since a version, until the server ends the watch.

        The version of the latest event is in _reached.

        Raises:
            RetryableError: The server cannot watch from this version, or no longer.
        """
        seconds = random.randint(_WATCH_SECONDS, 2 * _WATCH_SECONDS)  # noqa: S311 - spreads load
        ends = self._clock() + seconds + _OVERTIME_SECONDS
        query = {
            **self._selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        with self._api.watch(self._path(), query=query, silent_seconds=_SILENT_SECONDS) as stream:
            with self._guard:
                self._stream = stream
            try:
                # Checked again: between the check in run() and here, stop() had no stream to cut.
                for event in () if self._stop.is_set() else stream:
                    self._reached = _version_of(event)
                    if event.get("type") != "BOOKMARK":
                        self._on_event(str(event.get("type")), event.get("object") or {})
                    if self._clock() >= ends:
                        break
            finally:
                with self._guard:
                    self._stream = None


def _version_of(event: Mapping[str, Any]) -> str:
    item = event.get("object") or {}
    if event.get("type") == "ERROR" and isinstance(item, dict):
        message = error_text.one_line(item.get("message"))
        raise StatusError(f"watch: {message}", _number(item.get("code")))
    found = metadata(item)
    if event.get("type") != "BOOKMARK" and not found.get("name"):
        raise RetryableError("watch: found an event without an object, expected one with a name")
    return str(found.get("resourceVersion") or "")


def _number(code: object) -> int:
    return code if isinstance(code, int) else 0
