"""The number of the kubelet's calls in flight, and a bound on those that wait.

A stopping process waits until no call is in flight, and work that nobody waits for is put off while
one is. Each waiting call occupies a gRPC worker, so their number is bounded: however many calls
wait for a slow API server, workers remain for calls that wait for nothing: a prepare that its
record answers, an unprepare, the liveness probe.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Semaphore
from typing import Final, Self

from tensorfusion_dra.core.errors import RetryableError

MAX_READING: Final = 64
"""Calls that read from the API server. A node starts fewer pods at once, and each read takes some
milliseconds while the API server answers in time."""
MAX_WAITING_FOR_A_CLAIM: Final = 64
"""Calls that wait for another call for the same claim. Pods that share a claim start together."""
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


class WaitingCalls:
    """A bound that refuses further calls at once; the kubelet repeats them by itself."""

    def __init__(self, maximum: int, *, reason: str) -> None:
        """Args:
        maximum: Number of slots.
        reason: Why calls wait, for error texts: ``wait for the API server``.
        """
        self._maximum = maximum
        self._reason = reason
        self._free = Semaphore(maximum)

    @contextmanager
    def slot(self, subject: str) -> Iterator[None]:
        """Occupy a slot inside the block.

        Args:
            subject: What the call is about, for the error text: ``claim default/a``.

        Raises:
            RetryableError: All slots are occupied.
        """
        if not self._free.acquire(blocking=False):
            raise RetryableError(f"{subject}: {self._maximum} other calls {self._reason} already")
        try:
            yield
        finally:
            self._free.release()
