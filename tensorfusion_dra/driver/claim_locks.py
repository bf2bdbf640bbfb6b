"""Locks that let one call at a time work on a claim.

The kubelet may repeat a call while its first try is still running.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.waiting_calls import MOST_WAITING_FOR_A_CLAIM, WaitingCalls


class ClaimLocks:
    """Locks by claim UID; a lock exists only while a call holds it or waits for it.

    The call that holds a lock may be waiting for a slow API server, so the number of calls that
    wait for locks is bounded.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING_FOR_A_CLAIM) -> None:
        self._waiting = WaitingCalls(most_waiting, reason="wait for another call's claim")
        self._guard = Lock()  # guards _locks
        self._locks: dict[str, tuple[Lock, int]] = {}  # with the number of calls that use it

    @contextmanager
    def locked(self, ref: ClaimRef, deadline: float) -> Iterator[None]:
        """Hold the claim's lock inside the block.

        Args:
            ref: The claim; its UID selects the lock.
            deadline: On time.monotonic()'s clock.

        Raises:
            RetryableError: Another call for the claim held the lock until the deadline, or too many
                calls are waiting for locks.
        """
        with self._guard:
            lock, users = self._locks.get(ref.uid, (Lock(), 0))
            self._locks[ref.uid] = (lock, users + 1)
        try:
            # Only calls that have to wait count against the bound.
            if not lock.acquire(blocking=False):
                with self._waiting.slot(f"claim {ref}"):
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
