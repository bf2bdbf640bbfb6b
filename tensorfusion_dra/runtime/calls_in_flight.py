"""Count of the kubelet's calls in flight, and the time since the last one.

A stopping process waits until no call is in flight, and work that nobody waits for is put off while
one is.
"""

import math
import time
from collections.abc import Callable
from threading import Condition
from typing import Final, Self

_POLL_SECONDS: Final = 0.1


class CallsInFlight:
    """Number of calls in flight, over all threads.

    As a context manager, it counts a call as in flight during the block. It may be entered by many
    threads at a time.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ended_one = Condition()  # guards all below
        self._count = 0
        self._ended = -math.inf

    def __enter__(self) -> Self:
        with self._ended_one:
            self._count += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._ended_one:
            self._count -= 1
            self._ended = self._clock()
            self._ended_one.notify_all()

    def quiet_seconds(self) -> float:
        """Return the time since the last call ended; 0 while one is in flight."""
        with self._ended_one:
            return 0.0 if self._count else self._clock() - self._ended

    def wait_none(self, *, seconds: float, until: Callable[[], bool]) -> int:
        """Wait until no call is in flight; return how many still are.

        Args:
            seconds: The longest wait.
            until: Polled during the wait; True ends it.
        """
        deadline = time.monotonic() + seconds
        with self._ended_one:
            while self._count and not until():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._ended_one.wait(min(left, _POLL_SECONDS))
            return self._count
