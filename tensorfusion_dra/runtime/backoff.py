"""Delays between retries: they grow with each failure, and jitter keeps nodes out of step."""

import random


class Backoff:
    """Delays that double with each failure up to a maximum, with jitter."""

    def __init__(self, *, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._failures = 0

    def failed(self, *, at_least: float = 0.0) -> float:
        """Count one more failure; return the seconds to wait: 50 to 100 percent of the delay.

        Args:
            at_least: Seconds that the other side requested. The wait is one to one and a half times
                as long, so that many nodes do not return at the same moment.
        """
        delay = min(self._longest, self._first * float(2 ** min(self._failures, 30)))
        self._failures += 1
        spread = random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
        return max(delay * spread, at_least * (spread + 0.5))

    def succeeded(self) -> None:
        """Start again with the first delay."""
        self._failures = 0
