"""Lets a loop that fails for hours say so without filling the log."""

import time
from collections.abc import Callable
from typing import Final

_QUIET_SECONDS: Final = 600.0


class LogThrottle:
    """Knows what is worth a line: what was not said last, or not for ten minutes."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was said yet.

        Args:
            clock: In seconds; must not go back.
        """
        self._clock = clock
        self._said = ""
        self._at = 0.0

    def is_new(self, text: str) -> bool:
        """Whether to say this; the caller does so if it is."""
        now = self._clock()
        if text == self._said and now - self._at < _QUIET_SECONDS:
            return False
        self._said, self._at = text, now
        return True

    def over(self) -> bool:
        """All is well again; whether something had been said to the contrary."""
        was_said, self._said = bool(self._said), ""
        return was_said
