"""Ends the process when one of its parts has died for good: half a driver is worse than none."""

import signal
from collections.abc import Callable
from threading import Event, Lock, Thread

import structlog

from tensorfusion_dra.app.shared import stop_signals
from tensorfusion_dra.app.shared.stop_signals import STOP_SIGNALS

log = structlog.get_logger()


class Supervisor:
    """Owns the long-running threads and the reason to stop."""

    def __init__(self) -> None:
        self._stop = Event()
        self._hurry = Event()
        self._guard = Lock()  # guards _cause
        self._cause: BaseException | None = None
        self._threads: list[Thread] = []

    def run(self, name: str, part: Callable[[], None]) -> None:
        """Runs a part in a thread of its own; if it ends before its time, so does the process."""
        thread = Thread(target=self._watched, args=(name, part), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def fail(self, error: BaseException) -> None:
        """Stops everything because of this error."""
        with self._guard:
            self._cause = self._cause or error
        self._stop.set()

    @property
    def stopping(self) -> Event:
        """Set as soon as it is time to stop."""
        return self._stop

    @property
    def stop_now(self) -> bool:
        """Whether it was told a second time to stop: nothing is worth waiting for any more."""
        return self._hurry.is_set()

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT end the process in order; call it before any thread starts."""
        # Not a handler: Python runs it in the main thread once that comes back to bytecode, and a
        # signal that arrives just before the main thread blocks is not seen until the next one.
        # New threads inherit the mask, so that the kernel keeps the signal for sigwait.
        stop_signals.hold()

        def stop() -> None:
            for event in (self._stop, self._hurry):
                number = signal.sigwait(STOP_SIGNALS)
                log.info("stop_requested", signal=signal.Signals(number).name)
                event.set()

        Thread(target=stop, name="signals", daemon=True).start()

    def wait(self) -> BaseException | None:
        """Returns once it is time to stop: the error that made it necessary, or None."""
        self._stop.wait()
        with self._guard:
            return self._cause

    def join(self, *, seconds: float) -> None:
        """Waits for all threads, at most so long for each."""
        for thread in self._threads:
            thread.join(seconds)
            if thread.is_alive():
                log.warning("thread_left_behind", error=f"{thread.name} still runs")

    def _watched(self, name: str, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:  # a thread that calls sys.exit() would end unseen
            log.error("part_failed", part=name, error=repr(error), exc_info=True)
            self.fail(error)
        else:
            if not self._stop.is_set():
                self.fail(RuntimeError(f"{name} ended by itself"))
