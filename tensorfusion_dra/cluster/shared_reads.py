"""Reads that callers share, each of whom gets one that began after it asked.

Example: a list takes a second, and ten callers ask for it while one is under way. They wait for its
end, the first of them lists again, and all ten get that list.
"""

import math
import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from tensorfusion_dra.core.errors import RetryableError

Found = TypeVar("Found")


class _LatestRead:
    """What the latest read of a key has found, while somebody waits for one."""

    def __init__(self) -> None:
        self.lock = Lock()  # held during a read; guards both below
        self.began = -math.inf
        self.found: Any = None


class SharedReads:
    """Reads by key, of which one at a time is under way; safe for all threads."""

    def __init__(self) -> None:
        self._guard = Lock()  # guards _latest
        self._latest: WeakValueDictionary[Hashable, _LatestRead] = WeakValueDictionary()

    def get(self, key: Hashable, read: Callable[[float], Found], *, wait_seconds: float) -> Found:
        """Return what a read that begins now or later returns.

        Args:
            key: Callers with the same key would read the same.
            read: Called by one of them, with the seconds that it may take. What it raises goes to
                that caller, and the next one reads again.
            wait_seconds: For all.

        Raises:
            RetryableError: Reads of others take longer.
        """
        asked = time.monotonic()
        with self._guard:
            latest = self._latest.setdefault(key, _LatestRead())
        if not latest.lock.acquire(timeout=max(0.0, wait_seconds)):
            raise RetryableError(f"found other reads for {wait_seconds:.0f} s")
        try:
            if latest.began <= asked:
                began = time.monotonic()
                latest.found = read(asked + wait_seconds - began)
                latest.began = began
            found: Found = latest.found
        finally:
            latest.lock.release()
        return found
