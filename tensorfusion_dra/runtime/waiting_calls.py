"""A bound on the kubelet's calls that wait at the same time, since each occupies a gRPC worker.

However many calls wait for a slow API server, workers remain for calls that wait for nothing: a
prepare that its record answers, an unprepare, the liveness probe.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Semaphore
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

MOST_READING: Final = 64
"""Calls that read from the API server. A node starts fewer pods at once, and each read takes some
milliseconds while the API server answers in time."""
MOST_WAITING_FOR_A_CLAIM: Final = 64
"""Calls that wait for another call for the same claim. Pods that share a claim start together."""


class WaitingCalls:
    """A bound that refuses further calls at once; the kubelet repeats them by itself."""

    def __init__(self, most: int, *, reason: str) -> None:
        """Start with all slots free.

        Args:
            most: Number of slots.
            reason: Why calls wait, for error texts: ``wait for the API server``.
        """
        self._most = most
        self._reason = reason
        self._free = Semaphore(most)

    @contextmanager
    def slot(self, subject: str) -> Iterator[None]:
        """Occupy a slot inside the block.

        Args:
            subject: What the call is about, for the error text: ``claim default/a``.

        Raises:
            RetryableError: All slots are occupied.
        """
        if not self._free.acquire(blocking=False):
            raise RetryableError(f"{subject}: {self._most} other calls {self._reason} already")
        try:
            yield
        finally:
            self._free.release()
