"""Counters and histograms by label values, without the library that writes them down.

Prepares count into these, so adding costs one lock and two list items. The library is only loaded
once somebody scrapes (exposition.py), and what was counted before that is not lost.

Every known combination of label values exists from the start at 0. Otherwise a counter would begin
with its first event, and a rate over it would miss that event.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Final

LabelValues = tuple[str, ...]

CALL_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Bounds for whole calls: most take 2 to 20 ms, and the kubelet gives up after 45 s."""
STAGE_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05),
    *(0.1, 0.25, 1.0, 5.0, 30.0),
)
"""Bounds for parts of calls, some of which take less than a millisecond."""


class Counter:
    """Numbers of events by label values; safe for all threads."""

    def __init__(self, known: Iterable[LabelValues]) -> None:
        """Start at 0.

        Args:
            known: Combinations of label values that exist from the start.
        """
        self._guard: Final = Lock()  # guards _numbers
        self._numbers: Final[dict[LabelValues, int]] = dict.fromkeys(known, 0)

    def add(self, labels: LabelValues, number: int = 1) -> None:
        """Add a number of events."""
        with self._guard:
            self._numbers[labels] = self._numbers.get(labels, 0) + number

    def read(self) -> dict[LabelValues, int]:
        """Return the numbers of one moment."""
        with self._guard:
            return dict(self._numbers)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations of events with the same label values.

    Attributes:
        cumulative: Number of events up to each bound; the last one is that of all events.
        seconds: Sum of the durations.
    """

    cumulative: tuple[int, ...]
    seconds: float


class Histogram:
    """Durations of events by label values; safe for all threads."""

    def __init__(self, known: Iterable[LabelValues], *, bounds: Sequence[float]) -> None:
        """Start at 0.

        Args:
            known: Combinations of label values that exist from the start.
            bounds: Upper bounds of the buckets, in seconds and in order; one without a bound comes
                after them.
        """
        self.bounds: Final = tuple(bounds)
        self._guard: Final = Lock()  # guards both below
        self._buckets: Final = {labels: [0] * (len(self.bounds) + 1) for labels in known}
        self._sums: Final = dict.fromkeys(self._buckets, 0.0)

    def add(self, labels: LabelValues, seconds: float) -> None:
        """Add an event."""
        self.add_each([(labels, seconds)])

    def add_each(self, events: Iterable[tuple[LabelValues, float]]) -> None:
        """Add several events, with the cost of one lock."""
        bounds, buckets, sums = self.bounds, self._buckets, self._sums
        with self._guard:
            for labels, seconds in events:
                if labels not in buckets:
                    buckets[labels] = [0] * (len(bounds) + 1)
                    sums[labels] = 0.0
                buckets[labels][bisect_left(bounds, seconds)] += 1
                sums[labels] += seconds

    def read(self) -> dict[LabelValues, Distribution]:
        """Return the distributions of one moment."""
        with self._guard:
            return {
                labels: Distribution(tuple(accumulate(numbers)), self._sums[labels])
                for labels, numbers in self._buckets.items()
            }
