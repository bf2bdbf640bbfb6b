"""Tells the publisher when somebody changed or deleted the node's slices."""

import random
from collections.abc import Callable
from threading import Event, Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.cluster.api import StatusError, WatchStream
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.backoff import Backoff

log = structlog.get_logger()

_WATCH_SECONDS: Final = 300
_SILENT_SECONDS: Final = 90.0
"""An API server sends a bookmark every minute."""


class SliceWatch:
    """A watch that outlives everything a server or network does to it, at a bounded rate."""

    def __init__(
        self,
        resource_api: ResourceApi,
        *,
        selector: str,
        on_change: Callable[[], None],
        on_return: Callable[[], None],
    ) -> None:
        """Watches the slices of a field selector.

        Args:
            on_change: A slice was added, changed or deleted.
            on_return: The watch begins, or begins again after a failure: anything may have
                happened meanwhile, and the server may be another one.
        """
        self._resource_api = resource_api
        self._selector = selector
        self._on_change = on_change
        self._on_return = on_return
        self._stop = Event()
        self._guard = Lock()  # guards _stream
        self._stream: WatchStream | None = None

    def stop(self) -> None:
        """Ends run()."""
        self._stop.set()
        with self._guard:
            if self._stream is not None:
                self._stream.cut()

    def run(self) -> None:
        """Watches until stopped."""
        backoff = Backoff(first_seconds=0.2, longest_seconds=30)
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._listed()
                    self._on_return()
                version = self._watch(version)
                backoff.succeeded()
                delay = 0.2  # a server that ends every watch at once is not asked in a tight loop
            except RetryableError as error:
                version = ""
                delay = backoff.failed()
                if not self._stop.is_set():
                    log.warning("watch_retried", seconds=round(delay, 1), error=str(error))
            self._stop.wait(delay)

    def _listed(self) -> str:
        listed = self._resource_api.api.call(
            "GET",
            self._resource_api.slices(),
            query={"fieldSelector": self._selector, "limit": "1"},
        )
        return str(listed["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """The version to go on from when the server has ended the watch.

        Raises:
            RetryableError: Watching from this version is not possible, or no longer.
        """
        query = {
            "fieldSelector": self._selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(_WATCH_SECONDS, 2 * _WATCH_SECONDS)),  # noqa: S311 - spreads load
        }
        path = self._resource_api.slices()
        with self._resource_api.api.watch(
            path, query=query, silent_seconds=_SILENT_SECONDS
        ) as stream:
            with self._guard:
                self._stream = stream
            try:
                # Between the check in run() and here, stop() had no stream to cut.
                for event in () if self._stop.is_set() else stream:
                    version = _version_of(event)
                    if event.get("type") != "BOOKMARK":
                        self._on_change()
            finally:
                with self._guard:
                    self._stream = None
        return version


def _version_of(event: dict[str, Any]) -> str:
    item = event.get("object") or {}
    if event.get("type") == "ERROR":
        raise StatusError(f"watch: {item.get('message')}", int(item.get("code") or 0))
    return str(item.get("metadata", {}).get("resourceVersion") or "")
