"""Waiting longer after each failure, and never in step with other nodes."""

import random


class Backoff:
    """Delays that double from a first to a longest one, with jitter."""

    def __init__(self, *, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._failures = 0

    def failed(self, *, at_least: float = 0.0) -> float:
        """Seconds to wait after one more failure, between half and all of the doubled delay.

        Args:
            at_least: What the other side asked for, and a little more for each node of many.
        """
        delay = min(self._longest, self._first * float(2 ** min(self._failures, 30)))
        self._failures += 1
        spread = random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        return max(delay * spread, at_least * (spread + 0.5))

    def succeeded(self) -> None:
        """The next failure waits the first delay again."""
        self._failures = 0
