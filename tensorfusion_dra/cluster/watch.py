"""A watch that outlives everything a server or network does to it, at a bounded rate.

A list is followed by watches; each goes on from the version that the one before it reached:

    list ──> watch ──ended with progress──> watch ── ... ──> list, at least twice an hour
      ^        │
      └────────┴── ended without progress, or failed: after a delay that doubles each time

A watch has made progress if its events reached another version. One that ended without may have
missed anything: the server or something in between may not deliver events at all, so what there is
is listed again. A watch that lasted for longer than the longest delay, or that made progress,
begins the delays anew.
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
"""For a server that does not end a watch after the time that it was asked for."""
_LIST_SECONDS: Final = 1800.0
"""After which everything is listed again, in case that events were lost."""
_SILENT_SECONDS: Final = 90.0
"""An API server sends a bookmark every minute."""
_FORBIDDEN: Final = 403
_FORBIDDEN_SECONDS: Final = 60.0
"""A right comes when an administrator grants it."""


class Watch:
    """Lists one kind of object, then tells every change until it has to list again."""

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
        """Asks nothing yet.

        Args:
            path: Of the collection; may itself ask the server.
            selector: A field selector; empty for all objects.
            on_list: What there is as the watch begins, or begins again: anything may have happened
                meanwhile, and the server may be another one.
            on_event: ``ADDED``, ``MODIFIED`` or ``DELETED``, and the object.
            on_absent: The server does not have this kind, which is asked for again ever more
                rarely; without it, that is a failure like others.
            list_limit: For a caller that needs no more objects than these in a list.
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
        """Ends run()."""
        self._stop.set()
        with self._guard:
            if self._stream is not None:
                self._stream.cut()

    def run(self) -> None:
        """Watches until stopped."""
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
                    delay = self._tell(error, delay)
            self._stop.wait(delay)

    def _is_healthy(self, version: str, began: float) -> bool:
        """Whether a watch that has ended was good for something, so that the next may come soon."""
        return self._reached != version or self._clock() - began >= _LONGEST_DELAY_SECONDS

    def _tell(self, error: RetryableError, delay: float) -> float:
        """Says once what does not pass by itself, which is asked for again more rarely."""
        event = "watch_retried"
        if isinstance(error, StatusError) and error.status == _FORBIDDEN:
            event, delay = "watch_not_permitted", max(delay, _FORBIDDEN_SECONDS)
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
        """Tells the changes since a version until the server has ended the watch.

        The version that they reach is in _reached.

        Raises:
            RetryableError: Watching from this version is not possible, or no longer.
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
                # Between the check in run() and here, stop() had no stream to cut.
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
        said = error_text.one_line(item.get("message"))
        raise StatusError(f"watch: {said}", _number(item.get("code")))
    known = metadata(item)
    if event.get("type") != "BOOKMARK" and not known.get("name"):
        raise RetryableError("watch: found an event without an object, expected one with a name")
    return str(known.get("resourceVersion") or "")


def _number(code: object) -> int:
    return code if isinstance(code, int) else 0
