"""Log lines of a loop that fails for hours, without filling the log."""

import time
from collections.abc import Callable, Collection
from typing import Final

QUIET_SECONDS: Final = 600.0


class LogThrottle:
    """Decides whether a text is worth a line: it differs from the last one, or that one is old.

    Texts with different keys do not affect each other. For one thread.
    """

    def __init__(
        self,
        *,
        quiet_seconds: float = QUIET_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing was logged yet.

        Args:
            quiet_seconds: Time after which the same text is logged again; math.inf for never.
            clock: In seconds; must not go back.
        """
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        self._logged: dict[str, tuple[str, float]] = {}  # text and time by key

    def is_new(self, text: str, *, key: str = "") -> bool:
        """Return True if the caller should log the text, and take it as logged."""
        now = self._clock()
        last, at = self._logged.get(key, ("", -self._quiet_seconds))
        if text == last and now - at < self._quiet_seconds:
            return False
        self._logged[key] = (text, now)
        return True

    def over(self, *, key: str = "") -> bool:
        """Forget the last text, since the trouble is over; return False if there was none."""
        return self._logged.pop(key, None) is not None

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget the texts of all other keys."""
        self._logged = {key: value for key, value in self._logged.items() if key in keys}
