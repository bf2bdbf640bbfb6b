"""A watch that survives every fault of the server and the network, at a bounded request rate.

A list is followed by watches. Each watch continues from the version that the previous one reached:

    list ──> watch ──ended with progress──> watch ── ... ──> list, a few times a day
      ^        │
      └────────┴── ended without progress, or refused: after a delay that doubles each time

A watch has made progress if its events reached another version; bookmarks count, and an API server
sends one each minute. A watch that ended without progress may have missed changes, because the
server or a proxy may not deliver events at all. So everything is listed again. A watch that made
progress, or lasted longer than the longest delay, resets the delays to the first one.

Three rules keep the nodes of a large cluster from acting as one:

- A server that stops ends the watches of all nodes at the same moment. So a watch that ended before
  its requested time begins again after a random delay. The times themselves are random too.
- A list may be as old as the latest version that this client knows. So the API server answers from
  its memory, without asking etcd. Only after a refused list the newest state is requested.
- A list that is forbidden is repeated once a minute, since only an administrator can allow it. But
  a server that has just started forbids everything until it has read its roles. So if the list was
  allowed before, it is repeated sooner a few times.

Example: an API server is updated, and another one takes over. The watches of 1000 nodes end within
a second. Ten seconds later all of them are open again at the other server, about 100 in each
second. None was listed again, as the other server remembers the changes since the last bookmark.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.api import Api, StatusError, WatchStream, items, metadata
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.runtime.backoff import Backoff
from tensorfusion_dra.runtime.log_throttle import LogThrottle

log = structlog.get_logger()

Item = Mapping[str, Any]

_FIRST_DELAY_SECONDS: Final = 0.5
_LONGEST_DELAY_SECONDS: Final = 30.0
_RETURN_SECONDS: Final = 10.0
"""Time over which the nodes return after a server has ended all watches."""
_WATCH_SECONDS: Final = 300
_OVERTIME_SECONDS: Final = 60.0
"""Grace for a server that does not end a watch at the requested time."""
_LIST_SECONDS: Final = 6 * 3600.0
"""Interval after which everything is listed again, in case events were lost."""
_SILENT_SECONDS: Final = 90.0
"""An API server sends a bookmark every minute."""
_TOO_LARGE_VERSION: Final = 504
_FORBIDDEN: Final = 403
_FORBIDDEN_SECONDS: Final = 60.0
"""Least delay while the right is missing: only an administrator can grant it."""
_MOST_REFUSALS: Final = 5
"""Refusals in a row after which a right that was there before is missing."""
_GROUP_VERSION: Final = f"{names.TENSOR_FUSION_GROUP}/{names.TENSOR_FUSION_VERSION}"
_GPUPOOLS: Final = f"/apis/{_GROUP_VERSION}/{names.GPUPOOLS}"
_TEMPLATES: Final = f"/apis/{_GROUP_VERSION}/{names.SCHEDULING_CONFIG_TEMPLATES}"
_NODES: Final = "/api/v1/nodes"


class Watch:
    """A list of one kind of object, followed by a callback for every change."""

    def __init__(
        self,
        api: Api,
        path: Callable[[], str],
        *,
        selector: str,
        labels: str = "",
        on_list: Callable[[Sequence[Item], str], None],
        on_event: Callable[[str, Item], None],
        on_resume: Callable[[], None] = lambda: None,
        on_absent: Callable[[], None] | None = None,
        on_failure: Callable[[RetryableError], None] = lambda _error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the arguments; no request is sent yet.

        Args:
            path: Returns the path of the collection; it may send a request itself.
            selector: A field selector; empty for all objects.
            labels: A label selector; empty for all objects.
            on_list: Called with all objects and the version of the list, whenever the watch begins
                anew. Anything may have changed since the last event, and another server may answer.
            on_event: Called with ``ADDED``, ``MODIFIED`` or ``DELETED``, and the object.
            on_resume: Called when the watch continues after a server has ended it early. No change
                is missed, but another server may answer.
            on_absent: Called if the server does not have this kind; the list is then repeated at
                growing intervals. With None, a missing kind is a failure like any other.
            on_failure: Called with each failure to list or to watch, but for a missing kind.
            clock: In seconds.
        """
        self._api = api
        self._path = path
        selectors = {"fieldSelector": selector, "labelSelector": labels}
        self._selector = {key: text for key, text in selectors.items() if text}
        self._on_list = on_list
        self._on_event = on_event
        self._on_resume = on_resume
        self._on_absent = on_absent
        self._on_failure = on_failure
        self._clock = clock
        self._must_list = True
        self._list_at = 0.0
        self._was_listed = False
        self._not_older_than = "0"  # version for the next list: 0 for any, empty for the newest
        self._reached = ""
        self._is_open = False
        self._ended_early = False
        self._refusals = 0
        self._backoff = Backoff(
            first_seconds=_FIRST_DELAY_SECONDS, longest_seconds=_LONGEST_DELAY_SECONDS
        )
        self._absence = Backoff(first_seconds=1, longest_seconds=60)
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
        while not self._stop.is_set():
            began, start = math.inf, self._reached
            error: RetryableError | None = None
            self._is_open = False
            try:
                if self._must_list:
                    self._list()
                began, start = self._clock(), self._reached
                self._watch()
            except RetryableError as failure:
                error = failure
            progressed = self._reached != start
            is_healthy = progressed or self._clock() - began >= _LONGEST_DELAY_SECONDS
            if self._is_open or _is_refusal(error):
                self._must_list = self._may_have_missed(error, progressed=progressed)
            self._stop.wait(self._delay(error, is_healthy=is_healthy))

    def _may_have_missed(self, error: RetryableError | None, *, progressed: bool) -> bool:
        """Return True if the watch cannot continue from the version that it reached."""
        is_due = self._clock() >= self._list_at
        return _is_refusal(error) or is_due or not progressed or not self._reached

    def _delay(self, error: RetryableError | None, *, is_healthy: bool) -> float:
        """Return the seconds to wait after a watch has ended; report the error that ended it."""
        if is_healthy:
            self._backoff.succeeded()
            if error is None:
                self._throttle.over()
        if isinstance(error, StatusError) and error.status == 404 and self._on_absent:
            self._on_absent()
            return self._absence.failed()
        delay = self._backoff.failed(at_least=error.after_seconds if error else 0.0)
        if self._is_open and self._ended_early and not isinstance(error, StatusError):
            delay = max(delay, random.uniform(0, _RETURN_SECONDS))  # noqa: S311 - spreads load
        if error is not None:
            self._on_failure(error)
            delay = self._log_failure(error, delay)
        return delay

    def _log_failure(self, error: RetryableError, delay: float) -> float:
        """Log a failure unless it repeats the last one; return the delay, longer after a 403."""
        event = "watch_retried"
        if isinstance(error, StatusError) and error.status == _FORBIDDEN:
            event = "watch_forbidden"
            self._refusals += 1
            if not self._was_listed or self._refusals >= _MOST_REFUSALS:
                delay = max(delay, _FORBIDDEN_SECONDS)
        else:
            self._refusals = 0
        if not self._stop.is_set() and self._throttle.is_new(str(error)):
            log.warning(event, seconds=round(delay, 1), error=str(error))
        return delay

    def _list(self) -> None:
        path = self._path()
        query = {**self._selector, "resourceVersion": self._not_older_than}
        try:
            listed = self._api.call("GET", path, query=query)
        except StatusError as error:
            # A server restored from a backup lacks the version. One that is only busy has it.
            if error.status == _TOO_LARGE_VERSION or not error.after_seconds:
                self._not_older_than = ""
            raise
        version = metadata(listed).get("resourceVersion")
        found = items(listed, f"GET {path}")
        if not version:
            raise RetryableError(f"GET {path}: found no resourceVersion, expected one")
        self._on_list(found, str(version))
        self._reached = self._not_older_than = str(version)
        self._list_at = self._clock() + _LIST_SECONDS
        self._was_listed = True
        self._must_list = self._ended_early = False
        self._refusals = 0
        self._absence.succeeded()

    def _watch(self) -> None:
        """Report the changes since the version that was reached, until the server ends the watch.

        Raises:
            RetryableError: The server cannot watch from this version, or no longer.
        """
        seconds = random.randint(_WATCH_SECONDS, 2 * _WATCH_SECONDS)  # noqa: S311 - spreads load
        due = self._clock() + seconds
        query = {
            **self._selector,
            "resourceVersion": self._reached,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        resumes, self._ended_early = self._ended_early, True
        with self._api.watch(self._path(), query=query, silent_seconds=_SILENT_SECONDS) as stream:
            self._is_open = True
            with self._guard:
                self._stream = stream
            try:
                if resumes:
                    self._on_resume()
                # Checked again: between the check in run() and here, stop() had no stream to cut.
                for event in () if self._stop.is_set() else stream:
                    self._note(event)
                    if self._clock() >= due + _OVERTIME_SECONDS:
                        break
            finally:
                with self._guard:
                    self._stream = None
        self._ended_early = self._clock() < due - 1

    def _note(self, event: Item) -> None:
        """Report an event, and remember its version."""
        self._reached = self._not_older_than = _version_of(event)
        if event.get("type") != "BOOKMARK":
            self._on_event(str(event.get("type")), event.get("object") or {})


def _is_refusal(error: RetryableError | None) -> bool:
    """Return True if the server answered with an error, but for one that asks for patience."""
    return isinstance(error, StatusError) and not error.after_seconds


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


class ObjectCache:
    """Cache of one kind of object; implements ports.Objects.

    While the API server is unreachable, the cache keeps the objects as they were.
    """

    def __init__(self, api: Api, path: str, *, name: str, on_change: Callable[[], None]) -> None:
        """Create the watch without starting it.

        Args:
            path: The collection of a cluster-scoped kind.
            name: Keep only the object of this name; empty keeps all.
            on_change: Called when the result of items() may have changed.
        """
        self._path = path
        self._name = name
        self._on_change = on_change
        self._guard = Lock()  # guards _items and _absent
        self._items: dict[str, Item] | None = None
        self._absent = False
        self._watch = Watch(
            api,
            lambda: path,
            selector=f"metadata.name={name}" if name else "",
            on_list=self._listed,
            on_event=self._changed,
            on_absent=self._not_served,
        )

    def run(self) -> None:
        """Watch until stopped."""
        self._watch.run()

    def stop(self) -> None:
        """End run()."""
        self._watch.stop()

    def items(self) -> Sequence[Item]:
        with self._guard:
            if self._absent:
                raise InputError(
                    f"{self._path}: the API server has no such resource, "
                    f"expected the CustomResourceDefinitions of Tensor Fusion"
                )
            if self._items is None:
                raise RetryableError(f"{self._path}: not listed by the API server yet")
            return tuple(self._items.values())

    def _listed(self, items: Sequence[Item], _version: str) -> None:
        with self._guard:
            self._absent = False
            self._items = {_name(item): item for item in items if self._matters(item)}
        self._on_change()

    def _changed(self, event: str, item: Item) -> None:
        if not self._matters(item):
            return
        with self._guard:
            assert self._items is not None  # a watch begins with a list
            if event == "DELETED":
                self._items.pop(_name(item), None)
            else:
                self._items[_name(item)] = item
        self._on_change()

    def _matters(self, item: Item) -> bool:
        # A proxy between the driver and the API server may ignore a field selector.
        return not self._name or _name(item) == self._name

    def _not_served(self) -> None:
        with self._guard:
            self._absent = True
        self._on_change()


def gpupools(api: Api, *, name: str = "", on_change: Callable[[], None]) -> ObjectCache:
    """Return a cache of all GPUPools, or of the one with this name."""
    return ObjectCache(api, _GPUPOOLS, name=name, on_change=on_change)


def scheduling_config_templates(api: Api, *, on_change: Callable[[], None]) -> ObjectCache:
    """Return a cache of all SchedulingConfigTemplates."""
    return ObjectCache(api, _TEMPLATES, name="", on_change=on_change)


def nodes(api: Api, *, name: str, on_change: Callable[[], None]) -> ObjectCache:
    """Return a cache of the Node object with this name."""
    return ObjectCache(api, _NODES, name=name, on_change=on_change)


def _name(item: Item) -> str:
    return str(item["metadata"]["name"])
