"""Recent reads of claims: those whose record may answer a repeated call without another read.

The kubelet calls NodePrepareResources only before it creates a pod's sandbox, and only for a
claim that this process of the kubelet has not seen prepared yet. So it repeats a call for one of
two reasons (pkg/kubelet/cm/dra/manager.go of Kubernetes 1.36):

1. The first answer did not count: it was late, or another claim or driver of the pod failed. The
   pod is still in reservedFor, so its claim cannot have been deallocated. The kubelet calls again
   every 60 to 90 seconds.
2. The kubelet was restarted and does not know what was prepared, or its checkpoint was lost. In
   the meantime, the pod may have been force-deleted and the claim allocated again.

In the second case the reads are forgotten in time: a restarted kubelet requests every plugin's name
(GetInfo) before it calls the plugin, and that call forgets all reads. In the first case one risk
remains, which a time limit covers: a pod is force-deleted before it starts, and its claim gets
another pod on this node before the kubelet has unprepared it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

SECONDS: Final = 300.0
"""How long a read counts: at least three calls of the kubelet."""

ReadMark = tuple[int, float]
"""Start of a read: how often the kubelet may have been restarted, and the time."""


class RecentReads:
    """Claims whose allocation was read from the API server recently; safe for all threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any read.

        Args:
            clock: In seconds; must not go back.
        """
        self._clock = clock
        self._lock = Lock()  # guards all below
        self._kubelet = 0  # number of times that the kubelet may have been restarted
        self._read_at: OrderedDict[str, float] = OrderedDict()  # by claim UID, the oldest first

    def begin(self) -> ReadMark:
        """Return a mark for the start of a read, to pass to note() once the read is done."""
        with self._lock:
            return self._kubelet, self._clock()

    def note(self, claim_uid: str, began: ReadMark) -> None:
        """Remember a read, unless the kubelet may have been restarted while it ran."""
        kubelet, at = began
        with self._lock:
            if kubelet != self._kubelet:
                return
            self._read_at[claim_uid] = at
            self._read_at.move_to_end(claim_uid)
            self._forget_old()

    def covers(self, claim_uid: str) -> bool:
        """Return True if the claim was read recently, on behalf of the present kubelet."""
        with self._lock:
            at = self._read_at.get(claim_uid)
            return at is not None and self._clock() - at < SECONDS

    def forget(self, claim_uid: str) -> None:
        """Forget the read of a claim that is unprepared or about to be."""
        with self._lock:
            self._read_at.pop(claim_uid, None)

    def forget_all(self) -> None:
        """Forget all reads, because the kubelet may have been restarted."""
        with self._lock:
            self._kubelet += 1
            self._read_at.clear()

    def _forget_old(self) -> None:
        """Drop the reads that no longer count; the caller holds the lock."""
        now = self._clock()
        while self._read_at and now - next(iter(self._read_at.values())) >= SECONDS:
            self._read_at.popitem(last=False)
