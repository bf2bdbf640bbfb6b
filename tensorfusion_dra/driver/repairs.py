"""How often slices are written again that somebody else has changed or deleted.

The first repair is made at once: a kubelet that restarts deletes the slices of its drivers. If what
was repaired is changed again, each repair waits twice as long as the one before, up to a minute:
two writers that undo each other's writes would otherwise do so many times a second. After ten quiet
minutes the next repair is a first one again.
"""

import time
from collections.abc import Callable
from typing import Final

from tensorfusion_dra.driver.backoff import Backoff

_LONGEST_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 600.0


class Repairs:
    """The pace of repairs. For one thread, but for seconds_left()."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """No repair was made yet.

        Args:
            clock: In seconds.
        """
        self._clock = clock
        self._backoff = Backoff(first_seconds=1, longest_seconds=_LONGEST_SECONDS)
        self._made_at = -_QUIET_SECONDS
        self._next_at = 0.0
        self._is_told = False

    def seconds_left(self) -> float:
        """Until the next repair may be made; 0 if it may be made now."""
        return max(0.0, self._next_at - self._clock())

    def made(self) -> bool:
        """Takes note of a repair; whether it is one of several, of which nobody was told yet."""
        now = self._clock()
        is_first = now - self._made_at >= _QUIET_SECONDS
        if is_first:
            self._backoff.succeeded()
            self._is_told = False
        self._made_at = now
        self._next_at = now + self._backoff.failed()
        return not is_first and not self._is_told

    def told(self) -> None:
        """Somebody was told of the other writer; nobody is told again before a quiet time."""
        self._is_told = True
