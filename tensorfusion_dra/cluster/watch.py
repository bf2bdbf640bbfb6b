"""A watch that outlives everything a server or network does to it, at a bounded rate."""

import random
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final

import structlog

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.cluster.api import Api, StatusError, items, metadata
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.repeats import Repeats

if TYPE_CHECKING:
    from tensorfusion_dra.cluster.watch_stream import WatchStream

log = structlog.get_logger()

Item = Mapping[str, Any]

_WATCH_SECONDS: Final = 300
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
    ) -> None:
        """Asks nothing yet.

        Args:
            path: Of the collection; may itself ask the server.
            selector: A field selector; empty for all objects.
            on_list: What there is as the watch begins, or begins again after a failure: anything
                may have happened meanwhile, and the server may be another one.
            on_event: ``ADDED``, ``MODIFIED`` or ``DELETED``, and the object.
            on_absent: The server does not have this kind, which is asked for again ever more
                rarely; without it, that is a failure like others.
            list_limit: For who needs no more objects than these in a list.
        """
        self._api = api
        self._path = path
        self._selector = {"fieldSelector": selector} if selector else {}
        self._on_list = on_list
        self._on_event = on_event
        self._on_absent = on_absent
        self._list_limit = {"limit": str(list_limit)} if list_limit else {}
        self._stop = Event()
        self._guard = Lock()  # guards _stream
        self._stream: WatchStream | None = None
        self._repeats = Repeats()

    def stop(self) -> None:
        """Ends run()."""
        self._stop.set()
        with self._guard:
            if self._stream is not None:
                self._stream.cut()

    def run(self) -> None:
        """Watches until stopped."""
        backoff = Backoff(first_seconds=0.2, longest_seconds=30)
        absence = Backoff(first_seconds=1, longest_seconds=60)
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._listed()
                    absence.succeeded()
                version = self._watch(version)
                backoff.succeeded()
                self._repeats.over()
                delay = 0.2  # a server that ends every watch at once is not asked in a tight loop
            except RetryableError as error:
                version = ""
                if self._on_absent and isinstance(error, StatusError) and error.status == 404:
                    delay = absence.failed()
                    self._on_absent()
                else:
                    delay = backoff.failed(at_least=error.after_seconds)
                    delay = self._tell(error, delay)
            self._stop.wait(delay)

    def _tell(self, error: RetryableError, delay: float) -> float:
        """Says once what does not pass by itself, which is asked for again more rarely."""
        event = "watch_retried"
        if isinstance(error, StatusError) and error.status == _FORBIDDEN:
            event, delay = "watch_not_permitted", max(delay, _FORBIDDEN_SECONDS)
        if not self._stop.is_set() and self._repeats.is_new(str(error)):
            log.warning(event, seconds=round(delay, 1), error=str(error))
        return delay

    def _listed(self) -> str:
        path = self._path()
        listed = self._api.call("GET", path, query={**self._selector, **self._list_limit})
        version = metadata(listed).get("resourceVersion")
        found = items(listed, f"GET {path}")
        if not version:
            raise RetryableError(f"GET {path}: found no resourceVersion, expected one")
        self._on_list(found)
        return str(version)

    def _watch(self, version: str) -> str:
        """The version to go on from when the server has ended the watch.

        Raises:
            RetryableError: Watching from this version is not possible, or no longer.
        """
        query = {
            **self._selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(_WATCH_SECONDS, 2 * _WATCH_SECONDS)),  # noqa: S311 - spreads load
        }
        with self._api.watch(self._path(), query=query, silent_seconds=_SILENT_SECONDS) as stream:
            with self._guard:
                self._stream = stream
            try:
                # Between the check in run() and here, stop() had no stream to cut.
                for event in () if self._stop.is_set() else stream:
                    version = _version_of(event)
                    if event.get("type") != "BOOKMARK":
                        self._on_event(str(event.get("type")), event.get("object") or {})
            finally:
                with self._guard:
                    self._stream = None
        return version


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
