"""How many of the kubelet's calls may wait at a time: each keeps a worker of the server meanwhile.

Workers are kept for the calls that wait for nothing (a prepare that is answered from its record, an
unprepare, the liveness probe), however many others wait for a slow API server.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Semaphore
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

MOST_READING: Final = 64
"""Calls that read objects of the API server. A node starts fewer pods at once, and with an API
server that answers in time each takes some milliseconds."""
MOST_WAITING_FOR_A_CLAIM: Final = 64
"""Calls that wait for another call for the same claim: pods that share a claim start together."""


class WaitingCalls:
    """A bound that refuses at once; the kubelet repeats the call by itself."""

    def __init__(self, most: int, *, reason: str) -> None:
        """No call waits yet.

        Args:
            most: Calls at a time.
            reason: Why they wait, for errors: ``wait for the API server``.
        """
        self._most = most
        self._reason = reason
        self._room = Semaphore(most)

    @contextmanager
    def one(self, subject: str) -> Iterator[None]:
        """Counts a call as waiting inside the block.

        Args:
            subject: For errors.

        Raises:
            RetryableError: Too many wait already.
        """
        if not self._room.acquire(blocking=False):
            raise RetryableError(f"{subject}: {self._most} other calls {self._reason} already")
        try:
            yield
        finally:
            self._room.release()
