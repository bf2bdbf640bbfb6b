"""Tools of every loop: a wait that others can end, growing delays, and quiet logs."""

import random
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any, Final

import structlog

from tensorfusion_dra.core.errors import ClaimError, RetryableError

log = structlog.get_logger()

QUIET_SECONDS: Final = 600.0


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


class Wakeup:
    """Wakes one loop; wake() and stop() may be called from any thread.

    The loop looks like this::

        while self._wakeup.next_round():
            ...  # do what there is to do
            self._wakeup.wait(seconds)
    """

    def __init__(self) -> None:
        self._woken = Event()
        self._stop = Event()

    def wake(self) -> None:
        """Make the loop run again, now or right after its present round."""
        self._woken.set()

    def stop(self) -> None:
        """Make the loop end after its present round."""
        self._stop.set()
        self._woken.set()

    def next_round(self) -> bool:
        """Begin a round, which answers every wake() so far; return False once stopped."""
        self._woken.clear()
        # After the clearing, which may have taken stop()'s own wake-up.
        return not self._stop.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until woken or stopped; return False if neither happened within the time.

        Args:
            seconds: None waits without limit.
        """
        return self._woken.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait for the whole time, whatever wakes the loop; return early only if stopped."""
        self._stop.wait(max(0.0, seconds))


class LogThrottle:
    """Limits repeated log lines: a text is new if it differs from the last one, or that is old.

    Texts with different keys do not affect each other. For one thread.
    """

    def __init__(
        self,
        *,
        quiet_seconds: float = QUIET_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
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

    def warn(self, event: str, error: object, *, key: str = "", **facts: Any) -> None:
        """Log an error as a warning, if its text is new."""
        if self.is_new(str(error), key=key):
            log.warning(event, **facts, error=str(error))

    @contextmanager
    def warning(self, event: str, *, key: str = "", **facts: Any) -> Iterator[None]:
        """Log what ends the block, as warn() does, and go on; without an error the last is over.

        Only errors of a claim, and those after which another try may succeed, are taken so.
        """
        try:
            yield
        except (ClaimError, RetryableError) as error:
            self.warn(event, error, key=key, **facts)
        else:
            self.over(key=key)

    def over(self, *, key: str = "") -> bool:
        """Forget the last text, because its cause is gone; return False if there was none."""
        return self._logged.pop(key, None) is not None

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget the texts of all other keys."""
        self._logged = {key: value for key, value in self._logged.items() if key in keys}
