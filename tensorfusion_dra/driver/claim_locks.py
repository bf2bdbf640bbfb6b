"""One call at a time for each claim: the kubelet may repeat a call whose first try still runs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError


class ClaimLocks:
    """Locks by claim UID that exist only while somebody holds or wants them."""

    def __init__(self) -> None:
        self._guard = Lock()  # guards _locks
        self._locks: dict[str, tuple[Lock, int]] = {}

    @contextmanager
    def held(self, ref: ClaimRef, deadline: float) -> Iterator[None]:
        """Holds the claim's lock inside the block.

        Args:
            deadline: On time.monotonic()'s clock.

        Raises:
            RetryableError: Another call for the claim held it until the deadline.
        """
        with self._guard:
            lock, users = self._locks.get(ref.uid, (Lock(), 0))
            self._locks[ref.uid] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise RetryableError(f"claim {ref}: another call for it is still running")
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, users = self._locks.pop(ref.uid)
                if users > 1:
                    self._locks[ref.uid] = (lock, users - 1)
