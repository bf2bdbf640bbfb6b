"""Recent readings of the API server, for callers that cannot wait for a new one."""

import math
import time
from collections.abc import Callable
from threading import Event
from typing import Final, Generic, TypeVar

from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.runtime.loops import Wakeup

T = TypeVar("T")

_FRESH_SECONDS: Final = 10.0
_EMPTY_SECONDS: Final = 1.0
_KNOWN_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 0.05
"""Time for a reading of some nodes' slices; after a pause the first caller waits for it."""


class Lately(Generic[T]):
    """A reading that is repeated in a thread of its own, while somebody asks for it."""

    def __init__(
        self, read: Callable[[], T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        read: Called by run(); raises InputError or RetryableError.
        clock: In seconds; must not go back.
        """
        self._read = read
        self._clock = clock
        self._wakeup = Wakeup()
        self._done = Event()
        self._found: tuple[float, T | None] = (-math.inf, None)

    def seen(self) -> T | None:
        """Return what was read in the last half minute; None if nothing was.

        Something empty is read again after a second, because it is soon more while a cluster
        starts.
        """
        read_at, found = self._found
        if self._clock() - read_at > (_FRESH_SECONDS if found else _EMPTY_SECONDS):
            self._done.clear()
            self._wakeup.wake()
            self._done.wait(_PATIENCE_SECONDS)
        read_at, found = self._found
        return found if self._clock() - read_at <= _KNOWN_SECONDS else None

    def run(self) -> None:
        """Read at once, then whenever somebody has asked, until stopped."""
        while self._wakeup.next_round():
            began = self._clock()
            try:
                self._found = (began, self._read())
                self._done.set()
            except (InputError, RetryableError):
                self._wakeup.wait(_FRESH_SECONDS)
            else:
                self._wakeup.wait()

    def stop(self) -> None:
        """End run()."""
        self._wakeup.stop()
