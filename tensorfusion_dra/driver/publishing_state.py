"""State of the loop that publishes devices, for those who look at the node.

A round that writes calls begin_write() once and note_write() after each write. Example: a card
becomes unhealthy, and the first write fails. The next round writes the same slice for the reason
`retry`, and the write is counted there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice, WriteReason
from tensorfusion_dra.core.observed.node_view import PublishingView


class PublishingState:
    """State of one publisher. Its loop notes changes, and any thread may read view()."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Start before the first round.

        Args:
            now: Returns the wall clock's time.
        """
        self._now = now
        self._view = PublishingView()  # replaced as a whole, so that reading needs no lock
        self._wanted: Sequence[Slice] = ()  # as they were last found or made stored
        self._writing: WriteReason | None = None  # from begin_write() until confirm()

    def view(self) -> PublishingView:
        """Return the present state."""
        return self._view

    def confirm(self, wanted: Sequence[Slice], *, generation: int, written: bool) -> None:
        """Note that the stored slices are the wanted ones.

        Args:
            wanted: All slices of the pool.
            generation: Of the pool as it is stored.
            written: True if this round wrote slices.
        """
        now = self._now()
        self._wanted, self._writing = wanted, None
        self._view = replace(
            self._view,
            generation=generation,
            slices=len(wanted),
            devices=sum(len(item["spec"]["devices"]) for item in wanted),
            confirmed_at=now,
            written_at=now if written else self._view.written_at,
        )

    def begin_write(self, wanted: Sequence[Slice], *, is_repair: bool) -> None:
        """Find out the reason of the writes that follow.

        Args:
            wanted: All slices of the pool.
            is_repair: True if another writer has changed or deleted slices.
        """
        if self._writing is not None:
            self._writing = WriteReason.RETRY  # the writes before were not confirmed
        elif is_repair:
            self._writing = WriteReason.REPAIR
        else:
            self._writing = slices.write_reason(self._wanted, wanted)

    def note_write(self) -> None:
        """Note that a slice was written or deleted."""
        if self._writing is not None:
            writes = dict(self._view.writes)
            writes[self._writing] += 1
            self._view = replace(self._view, writes=writes)

    def note_dropped(self, gates: Iterable[str]) -> None:
        """Note the feature gates that the API server has off."""
        self._view = replace(self._view, dropped_gates=tuple(sorted(gates)))

    def note_right(self, *, has_right: bool) -> None:
        """Note whether this instance has the publishing right."""
        self._view = replace(self._view, has_right=has_right)

    def note_success(self) -> None:
        """Note the end of a round without an error."""
        if self._view.error:
            self._view = replace(self._view, error="", error_since=None)

    def note_failure(self, error: str) -> None:
        """Note a round that failed."""
        since = self._view.error_since or self._now()
        self._view = replace(self._view, error=error, error_since=since)
