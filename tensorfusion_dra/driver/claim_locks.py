"""Locks that let one call at a time work on a claim.

The kubelet may repeat a call while its first try is still running.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakValueDictionary

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.runtime.calls import MOST_WAITING_FOR_A_CLAIM, WaitingCalls


class ClaimLocks:
    """Locks by claim UID; a lock exists only while a call uses it.

    The call that holds a lock may be waiting for a slow API server, so the number of calls that
    wait for locks is bounded.
    """

    def __init__(self) -> None:
        self._waiting = WaitingCalls(
            MOST_WAITING_FOR_A_CLAIM, reason="wait for another call's claim"
        )
        self._guard = Lock()  # guards _locks
        self._locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()

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
            lock = self._locks.setdefault(ref.uid, Lock())
        # Only calls that have to wait count against the bound.
        if not lock.acquire(blocking=False):
            with self._waiting.slot(f"claim {ref}"):
                if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise RetryableError(f"claim {ref}: another call for it is still running")
        try:
            yield
        finally:
            lock.release()
