"""Count of calls in flight, so that a stopping process can wait until there are none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Final

_POLL_SECONDS: Final = 0.1


class CallsInFlight:
    """Number of calls in flight, over all threads."""

    def __init__(self) -> None:
        self._changed = Condition()  # guards _count
        self._count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a call as in flight during the block."""
        with self._changed:
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def wait_none(self, *, seconds: float, until: Callable[[], bool]) -> int:
        """Wait until no call is in flight; return how many still are.

        Args:
            seconds: The longest wait.
            until: Polled during the wait; True ends it.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._count and not until():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _POLL_SECONDS))
            return self._count
