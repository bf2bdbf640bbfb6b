"""Which claims the kubelet may ask for again without another read of the claim.

The kubelet calls NodePrepareResources only before it creates a pod's sandbox, and only for a
claim that this process of the kubelet has not seen prepared yet. So it repeats a call for one of
two reasons (pkg/kubelet/cm/dra/manager.go of Kubernetes 1.36):

1. The first answer did not count: it was late, or another claim or driver of the pod failed. The
   pod still waits in reservedFor, therefore its claim cannot have been deallocated. The kubelet
   asks again every 60 to 90 seconds.
2. The kubelet was restarted and has forgotten what was prepared, or its checkpoint was lost. In
   between, the pod may have been deleted by force and the claim allocated anew.

A restarted kubelet asks every plugin for its name (GetInfo) before it calls it, which forgets all
reads here. A time limit covers what remains of the first case: a pod that was deleted by force
before it started, whose claim reaches the next pod of this node before the kubelet has unprepared
it.
"""

import time
from collections.abc import Callable
from threading import Lock
from typing import Final

SECONDS: Final = 300.0
"""At least three tries of the kubelet."""
_MOST: Final = 4096
"""Claims; a node runs a fraction of that in pods."""


class RecentReads:
    """Claims whose allocation was read from the API server lately; safe for all threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was read yet.

        Args:
            clock: In seconds; must not go back.
        """
        self._clock = clock
        self._lock = Lock()  # guards all below
        self._kubelet = 0
        self._read_at: dict[str, float] = {}  # by claim UID

    def begin(self) -> tuple[int, float]:
        """Mark the moment before a read; note() takes the mark after it."""
        with self._lock:
            return self._kubelet, self._clock()

    def note(self, claim_uid: str, began: tuple[int, float]) -> None:
        """Remember a read, unless the kubelet was restarted while it ran."""
        kubelet, at = began
        with self._lock:
            if kubelet != self._kubelet:
                return
            if len(self._read_at) >= _MOST:
                self._forget_old()
            self._read_at[claim_uid] = at

    def covers(self, claim_uid: str) -> bool:
        """Whether the claim was read within the time, and by the kubelet that runs now."""
        with self._lock:
            at = self._read_at.get(claim_uid)
            return at is not None and self._clock() - at < SECONDS

    def forget(self, claim_uid: str) -> None:
        """The claim is unprepared, or is about to be."""
        with self._lock:
            self._read_at.pop(claim_uid, None)

    def forget_all(self) -> None:
        """The kubelet may be another process now."""
        with self._lock:
            self._kubelet += 1
            self._read_at.clear()

    def _forget_old(self) -> None:
        """Make room; for callers that hold the lock."""
        now = self._clock()
        self._read_at = {uid: at for uid, at in self._read_at.items() if now - at < SECONDS}
