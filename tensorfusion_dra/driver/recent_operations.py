"""The last operations on claims, for those who look at the node."""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from tensorfusion_dra.core.claims.operation import EndedOperation
from tensorfusion_dra.core.observed.node_view import OperationView

MOST_KEPT: Final = 60
"""Enough for a burst of pods; an older one is in the log."""


class RecentOperations:
    """Ring of the last operations; implements ports.operations.OperationObserver."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Keep nothing yet.

        Args:
            now: Returns the wall clock's time.
        """
        self._now = now
        self._lock = Lock()  # guards _kept
        self._kept: deque[OperationView] = deque(maxlen=MOST_KEPT)

    def operation_ended(self, operation: EndedOperation) -> None:
        # Without the prepared claim, whose record would stay in memory with it.
        view = OperationView(
            kind=operation.kind,
            claim=operation.claim,
            ended_at=self._now(),
            seconds=operation.seconds,
            stages=operation.seconds_by_stage,
            last_stage=operation.last_stage,
            result=operation.result,
            error=operation.error,
            from_record=operation.from_record,
        )
        with self._lock:
            self._kept.appendleft(view)

    def views(self) -> Sequence[OperationView]:
        """Return the operations, the newest first."""
        with self._lock:
            return tuple(self._kept)
