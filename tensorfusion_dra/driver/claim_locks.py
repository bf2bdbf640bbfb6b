"""Locks that let one call at a time work on a claim.

The kubelet may repeat a call while its first try is still running.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.runtime.calls import MOST_WAITING_FOR_A_CLAIM, WaitingCalls


@dataclass(slots=True)
class _Entry:
    """A claim's lock.

    Attributes:
        users: Calls that hold the lock or wait for it.
    """

    lock: Lock = field(default_factory=Lock)
    users: int = 0


class ClaimLocks:
    """Locks by claim UID; a lock exists only while a call uses it.

    The call that holds a lock may be waiting for a slow API server, so the number of calls that
    wait for locks is bounded.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING_FOR_A_CLAIM) -> None:
        self._waiting = WaitingCalls(most_waiting, reason="wait for another call's claim")
        self._guard = Lock()  # guards _entries
        self._entries: dict[str, _Entry] = {}

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
        entry = self._entered(ref.uid)
        try:
            # Only calls that have to wait count against the bound.
            if not entry.lock.acquire(blocking=False):
                with self._waiting.slot(f"claim {ref}"):
                    if not entry.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                        raise RetryableError(f"claim {ref}: another call for it is still running")
            try:
                yield
            finally:
                entry.lock.release()
        finally:
            self._leave(ref.uid)

    def _entered(self, uid: str) -> _Entry:
        with self._guard:
            entry = self._entries.setdefault(uid, _Entry())
            entry.users += 1
            return entry

    def _leave(self, uid: str) -> None:
        with self._guard:
            entry = self._entries[uid]
            entry.users -= 1
            if not entry.users:
                del self._entries[uid]
