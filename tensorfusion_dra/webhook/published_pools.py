"""Names of the GPUPools that nodes publish, kept for a few seconds: many pods may come at once."""

import math
import time
from collections.abc import Callable
from threading import Lock
from typing import Final

from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.webhook.ports import PublishedSlices

_FRESH_SECONDS: Final = 10.0


class PublishedPools:
    """Reader of the names; safe for all threads."""

    def __init__(
        self, slices: PublishedSlices, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slices = slices
        self._clock = clock
        self._lock = Lock()  # guards both below; one thread reads at a time
        self._names: frozenset[str] = frozenset()
        self._read_at = -math.inf

    def names(self, *, wait_seconds: float) -> frozenset[str]:
        """Return the names as they were at most ten seconds ago.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        with self._lock:
            if self._clock() - self._read_at > _FRESH_SECONDS:
                read_at = self._clock()
                self._names = devices.gpupools(self._slices.published(wait_seconds=wait_seconds))
                self._read_at = read_at
            return self._names
