"""The wait of a loop that other threads wake and stop."""

from threading import Event


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
        """Have the loop go round once more, now or right after its present round."""
        self._woken.set()

    def stop(self) -> None:
        """Have the loop end after its present round."""
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

    def wait_stopped(self) -> None:
        """Return once stopped."""
        self._stop.wait()
