"""Virtual time for loops that wait on events: hours pass in a moment."""

import threading


def nobody_ends_the_wait() -> None:
    """Fail: a loop would wait forever."""
    raise AssertionError("nobody would end this wait")


class VirtualTime:
    """Virtual time in which waits return at once; when the hours are over, every event is set.

    Attributes:
        seconds: The virtual time so far.
        wakes: Number of times that a loop was woken by a condition so far.
        at_rest: Called when a loop waits on a condition without limit; it has to give the loop
            something to do, or end it.
    """

    def __init__(self, hours: float) -> None:
        self.seconds = 0.0
        self.wakes = 0
        self.at_rest = nobody_ends_the_wait
        self._end = hours * 3600
        self._events: list[threading.Event] = []

    def event(self) -> threading.Event:
        """Return an event whose waits are virtual."""
        made = _VirtualEvent(self)
        self._events.append(made)
        return made

    def condition(self) -> threading.Condition:
        """Return a condition whose waits are virtual, for a loop in the test's own thread."""
        return _VirtualCondition(self)

    def passed(self, seconds: float) -> None:
        """Let virtual time pass; at the end, set every event."""
        self.seconds += seconds
        if self.seconds >= self._end:
            for event in self._events:
                event.set()


class VirtualClock:
    """Replacement of the module `time`, in which time passes only by sleeping."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return self._seconds

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self._seconds += seconds


class _VirtualEvent(threading.Event):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.passed(timeout or 0.0)
        return self.is_set()


class _VirtualCondition(threading.Condition):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            self._clock.at_rest()
        else:
            self._clock.passed(timeout)
        return True

    def notify(self, n: int = 1) -> None:
        self._clock.wakes += 1
        super().notify(n)
