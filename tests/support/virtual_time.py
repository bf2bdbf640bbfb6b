"""Virtual time for loops that wait on events: hours pass in a moment."""

import threading


class VirtualTime:
    """Virtual time in which waits return at once; when the hours are over, every event is set.

    Attributes:
        seconds: The virtual time so far.
    """

    def __init__(self, hours: float) -> None:
        self.seconds = 0.0
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
        assert timeout is not None, "nobody would end this wait"
        self._clock.passed(timeout)
        return True
