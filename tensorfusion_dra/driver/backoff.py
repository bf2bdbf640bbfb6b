"""Waiting longer after each failure, and never in step with other nodes."""

import random


class Backoff:
    """Delays that double from a first to a longest one, with jitter."""

    def __init__(self, *, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait after one more failure, between half and all of the doubled delay."""
        delay = min(self._longest, self._first * float(2 ** min(self._failures, 30)))
        self._failures += 1
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def succeeded(self) -> None:
        """The next failure waits the first delay again."""
        self._failures = 0
