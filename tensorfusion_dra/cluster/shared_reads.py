"""Reads that callers share, each of whom gets one that began after it asked.

Example: a list takes a second, and ten callers ask for it while one is under way. They wait for its
end, the first of them lists again, and all ten get that list.
"""

import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from threading import Lock
from typing import Any, TypeVar

from tensorfusion_dra.core.errors import RetryableError

Found = TypeVar("Found")


class SharedReads:
    """Reads by key, of which one at a time is under way; safe for all threads."""

    def __init__(self) -> None:
        self._guard = Lock()  # guards both below
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._next: dict[Hashable, Future[Any]] = {}

    def get(self, key: Hashable, read: Callable[[float], Found], *, wait_seconds: float) -> Found:
        """Return what a read that begins now or later returns, or raise what it raises.

        Args:
            key: Callers with the same key would read the same.
            read: Called by one of them, with the seconds that it may take.
            wait_seconds: For all.

        Raises:
            RetryableError: Other reads, and this one, take longer.
        """
        ends = time.monotonic() + wait_seconds
        with self._guard:
            before, shared = self._under_way.get(key), self._next.get(key)
            if is_first := shared is None:
                shared = self._next[key] = Future()
        assert shared is not None
        if is_first:
            if before is not None:
                wait([before], timeout=max(0.0, wait_seconds))
            with self._guard:
                del self._next[key]
                if is_next := before is None or before.done():
                    self._under_way[key] = shared
            if is_next:
                self._read(key, shared, lambda: read(ends - time.monotonic()))
            else:  # others that share it may have more time, and begin again
                shared.set_exception(TimeoutError())
        try:
            found: Found = shared.result(timeout=max(0.0, ends - time.monotonic()))
        except TimeoutError:
            raise RetryableError(f"found other reads for {wait_seconds:.0f} s") from None
        return found

    def _read(self, key: Hashable, shared: Future[Any], read: Callable[[], object]) -> None:
        try:
            shared.set_result(read())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
            shared.set_exception(error)
        finally:
            with self._guard:
                del self._under_way[key]
