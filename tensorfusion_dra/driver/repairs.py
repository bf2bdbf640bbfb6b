"""The pace of repairs: how soon slices that another writer changed or deleted are written again.

The first repair is made at once, because a kubelet that restarts deletes the slices of its drivers.
If another writer changes the slices again, each repair waits twice as long as the one before, up to
a minute. Otherwise two writers could undo each other's writes many times a second. After ten
minutes without a repair, the next one is again made at once.
"""

import time
from collections.abc import Callable
from typing import Final

from tensorfusion_dra.runtime.backoff import Backoff

_LONGEST_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 600.0


class Repairs:
    """The pace of one publisher's repairs.

    seconds_left() is safe for all threads, the other methods are for one thread.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any repair.

        Args:
            clock: In seconds; must not go back.
        """
        self._clock = clock
        self._backoff = Backoff(first_seconds=1, longest_seconds=_LONGEST_SECONDS)
        self._repaired_at = -_QUIET_SECONDS
        self._next_at = 0.0
        self._is_reported = False

    def seconds_left(self) -> float:
        """Return the time until the next repair may be made; 0 if it may be made now."""
        return max(0.0, self._next_at - self._clock())

    def record(self) -> bool:
        """Record a repair; return True if the repeated repairs should be reported.

        That is from the second repair in a row on, until mark_reported() is called.
        """
        now = self._clock()
        is_first = now - self._repaired_at >= _QUIET_SECONDS
        if is_first:
            self._backoff.succeeded()
            self._is_reported = False
        self._repaired_at = now
        self._next_at = now + self._backoff.failed()
        return not is_first and not self._is_reported

    def mark_reported(self) -> None:
        """Record that the other writer was reported; ends with the next quiet time."""
        self._is_reported = True
