"""A watch that survives every fault of the server and the network, at a bounded request rate.

A list is followed by watches. Each watch continues from the version that the previous one reached:

    list ──> watch ──ended with progress──> watch ──> ...
      ^        │
      └────────┴── ended without progress, or refused: after a delay that doubles each time

A watch has made progress if its events reached another version; bookmarks count, and an API server
sends one each minute. A watch that ended without progress may have missed changes, because the
server or a proxy may not deliver events at all. So everything is listed again. A watch that made
progress, or lasted longer than the longest delay, resets the delays to the first one.

Two rules keep the nodes of a large cluster from acting as one:

- A server that stops ends the watches of all nodes at the same moment. So a watch that ended before
  its requested time begins again after a random delay. The times themselves are random too.
- A list may be as old as the latest version that this client knows. So the API server answers from
  its memory, without asking etcd. Only after a refused list the newest state is requested.

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
from tensorfusion_dra.cluster.api import Answer, Api, resource_path
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError, StatusError
from tensorfusion_dra.core.kubernetes.projection import Projection
from tensorfusion_dra.core.kubernetes.untyped_json import map_at
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle

log = structlog.get_logger()

Item = Mapping[str, Any]

_FIRST_DELAY_SECONDS: Final = 0.5
_MAX_DELAY_SECONDS: Final = 30.0
_RETURN_SECONDS: Final = 10.0
"""Time over which the nodes return after a server has ended all watches."""
_WATCH_SECONDS: Final = 300
_SILENT_SECONDS: Final = 90.0
"""An API server sends a bookmark every minute."""
_TOO_LARGE_VERSION: Final = 504
TENSOR_FUSION: Final = f"/apis/{names.TENSOR_FUSION_GROUP}/{names.TENSOR_FUSION_VERSION}"
GPUPOOLS: Final = f"{TENSOR_FUSION}/{names.GPUPOOLS}"
TEMPLATES: Final = f"{TENSOR_FUSION}/{names.SCHEDULING_CONFIG_TEMPLATES}"
QUOTAS: Final = f"{TENSOR_FUSION}/{names.GPU_RESOURCE_QUOTAS}"
NODES: Final = "/api/v1/nodes"
TAINT_RULES: Final = resource_path("devicetaintrules")


class Watch:
    """A list of one kind of object, followed by a callback for every change."""

    def __init__(
        self,
        api: Api,
        path: str,
        keep: Projection,
        *,
        selector: str,
        labels: str = "",
        on_list: Callable[[Sequence[Item]], None],
        on_event: Callable[[str, Item], None],
        on_resume: Callable[[], None] = lambda: None,
        on_absent: Callable[[], None] | None = None,
        absent_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        path: That of the collection.
        keep: What is kept of each object; one that has another form is left out.
        selector: A field selector; empty for all objects.
        labels: A label selector; empty for all objects.
        on_list: Called with all objects after each list. Anything may have changed since the
            last event, and another server may answer.
        on_event: Called with ``ADDED``, ``MODIFIED`` or ``DELETED``, and the object.
        on_resume: Called when the watch continues after a server has ended it early. No change
            is missed, but another server may answer.
        on_absent: Called if the server does not have this kind; it is then listed again at
            growing intervals. With None, a missing kind is a failure like any other.
        absent_seconds: Least time until a kind that the server does not have is listed again.
        clock: In seconds.
        """
        self._api = api
        self._path = path
        self._keep = keep
        selectors = {"fieldSelector": selector, "labelSelector": labels}
        self.selector: Final = {key: text for key, text in selectors.items() if text}
        self._on_list = on_list
        self._on_event = on_event
        self._on_resume = on_resume
        self._on_absent = on_absent
        self._absent_seconds = absent_seconds
        self._clock = clock
        self._must_list = True
        self._reached = "0"
        """For a list, the oldest version to accept: 0 for any, "" for the newest."""
        self._is_open = False
        self.is_followed = False
        """True while a watch reports the changes since the last list."""
        self._ended_early = False
        self._is_absent = False
        self._backoff = Backoff(
            first_seconds=_FIRST_DELAY_SECONDS, longest_seconds=_MAX_DELAY_SECONDS
        )
        self._stop = Event()
        self._answer: Answer | None = None
        self._throttle = LogThrottle()

    def stop(self) -> None:
        """End run()."""
        self._stop.set()
        if (answer := self._answer) is not None:
            answer.cut()

    def run(self) -> None:
        """Watch until stopped."""
        while not self._stop.is_set():
            began, start = math.inf, ""
            error: RetryableError | None = None
            self._is_open = False
            try:
                if self._must_list:
                    self._list()
                began, start = self._clock(), self._reached
                self._watch()
            except RetryableError as failure:
                error = failure
            progressed = self._is_open and self._reached != start
            # A server that only asks for patience still remembers the changes since the version.
            is_refused = isinstance(error, StatusError) and not error.after_seconds
            self._must_list |= is_refused or (self._is_open and not progressed)
            status = error.status if isinstance(error, StatusError) else None
            was_absent, self._is_absent = self._is_absent, status == 404
            is_installed = was_absent and not self._is_absent
            if progressed or is_installed or self._clock() - began >= _MAX_DELAY_SECONDS:
                self._backoff.succeeded()
                if error is None:
                    self._throttle.over()
            delay = self._backoff.failed(at_least=error.after_seconds if error else 0.0)
            if self._is_open and self._ended_early and status is None:
                delay = max(delay, random.uniform(0, _RETURN_SECONDS))  # noqa: S311 - spreads load
            if status == 404 and self._on_absent:
                delay = max(delay, self._absent_seconds)
                self._on_absent()
            elif error and not self._stop.is_set() and self._throttle.is_new(str(error)):
                log.warning(
                    "watch_forbidden" if status == 403 else "watch_retried",
                    seconds=round(delay, 1),
                    error=str(error),
                )
            self._stop.wait(delay)

    def _list(self) -> None:
        path, query = self._path, {**self.selector, "resourceVersion": self._reached}
        try:
            # Without pages, because a list from the API server's memory has none.
            listed = self._api.listed(path, self._keep, query=query, pages=False)
        except StatusError as error:
            # A server restored from a backup lacks the version. One that is only busy has it.
            if error.status == _TOO_LARGE_VERSION or not error.after_seconds:
                self._reached = ""
            raise
        if not listed.version:
            raise RetryableError(f"GET {path}: found no resourceVersion, expected one")
        self._on_list(listed.items)
        self._reached = listed.version
        self._must_list = self._ended_early = False

    def _watch(self) -> None:
        """Report the changes since the version that was reached, until the server ends the watch.

        Raises:
            RetryableError: The server cannot watch from this version, or no longer.
        """
        seconds = random.randint(_WATCH_SECONDS, 2 * _WATCH_SECONDS)  # noqa: S311 - spreads load
        due = self._clock() + seconds
        query = {
            **self.selector,
            "resourceVersion": self._reached,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        resumes, self._ended_early = self._ended_early, True

        def on_open(answer: Answer) -> None:
            self._is_open = self.is_followed = True
            self._answer = answer
            if resumes:
                self._on_resume()
            # Checked after the answer is set: a stop() before that had none to cut.
            if self._stop.is_set():
                answer.cut()

        try:
            for event in self._api.watch(
                self._path, query=query, silent_seconds=_SILENT_SECONDS, on_open=on_open
            ):
                self._reached = _version_of(event)
                if event.get("type") != "BOOKMARK":
                    for item in self._api.reduced(self._path, event.get("object"), self._keep):
                        self._on_event(str(event.get("type")), item)
        finally:
            self.is_followed = False
        self._ended_early = self._clock() < due - 1


def _version_of(event: Mapping[str, Any]) -> str:
    item = event.get("object") or {}
    if event.get("type") == "ERROR" and isinstance(item, dict):
        message = error_text.one_line(item.get("message"))
        code = item.get("code")
        raise StatusError(f"watch: {message}", code if isinstance(code, int) else 0)
    found = map_at(item, "metadata")
    if event.get("type") != "BOOKMARK" and not found.get("name"):
        raise RetryableError("watch: found an event without an object, expected one with a name")
    return str(found.get("resourceVersion") or "")


def _key(item: Item) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


CACHED: Final[Projection] = {
    "metadata!": {
        "name!": str,
        "namespace": str,
        "uid": str,
        "resourceVersion": str,
        "labels": dict,
        "annotations": dict,
    },
    "spec": dict,
}
NAMES: Final[Projection] = {"metadata!": {"name!": str, "namespace": str}}


class ObjectCache:
    """Cache of one kind of object; implements the port Objects.

    While the API server is unreachable, the cache keeps the objects as they were.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        name: str = "",
        keep: Projection = CACHED,
        on_change: Callable[[], None] = lambda: None,
        absent_seconds: float = 0.0,
    ) -> None:
        """Create the watch without starting it.

        Args:
            path: The collection of all objects of a kind, such as GPUPOOLS.
            name: Keep only objects of this name; empty keeps all.
            keep: What is kept of each object: its name and namespace at least.
            on_change: Called when the result of items() may have changed.
            absent_seconds: See Watch.
        """
        self._api = api
        self._path = path
        self._keep = keep
        self._on_change = on_change
        self._guard = Lock()  # guards _items and _absent
        self._items: dict[tuple[str, str], Item] | None = None
        self._absent = False
        self._watch = Watch(
            api,
            path,
            keep,
            selector=f"metadata.name={name}" if name else "",
            on_list=self._listed,
            on_event=self._changed,
            on_absent=self._not_served,
            absent_seconds=absent_seconds,
        )
        self.run: Final = self._watch.run
        self.stop: Final = self._watch.stop

    def items(self) -> Sequence[Item]:
        with self._guard:
            if self._absent:
                raise self._missing()
            if self._items is None:
                raise RetryableError(f"{self._path}: not listed by the API server yet")
            return tuple(self._items.values())

    def current(self, *, wait_seconds: float) -> Sequence[Item]:
        """Return items(), or those of a new list while no watch keeps the cache up to date.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
            InputError: The API server does not serve this kind.
        """
        if self._watch.is_followed:
            return self.items()
        try:
            return self._api.listed(
                self._path, self._keep, query=self._watch.selector, wait_seconds=wait_seconds
            ).items
        except StatusError as error:
            if error.status == 404:
                raise self._missing() from error
            raise

    def _missing(self) -> InputError:
        return InputError(
            f"{self._path}: the API server has no such resource, "
            f"expected the CustomResourceDefinitions of Tensor Fusion"
        )

    def _listed(self, items: Sequence[Item]) -> None:
        with self._guard:
            self._absent = False
            self._items = {_key(item): item for item in items}
        self._on_change()

    def _changed(self, event: str, item: Item) -> None:
        key = _key(item)
        with self._guard:
            assert self._items is not None  # a watch begins with a list
            if event == "DELETED":
                self._items.pop(key, None)
            else:
                self._items[key] = item
        self._on_change()

    def _not_served(self) -> None:
        with self._guard:
            self._absent = True
        self._on_change()
