"""Owner of the process's threads: when one of them dies, the process ends.

Half a driver is worse than none.
"""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import Event, Lock, Thread
from typing import ParamSpec, Protocol, Self, TypeVar

import structlog

from tensorfusion_dra.app.shared import stop_signals
from tensorfusion_dra.app.shared.stop_signals import STOP_SIGNALS

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")


class Part(Protocol):
    """A loop that runs in a thread of its own."""

    def run(self) -> None:
        """Run until stopped."""
        ...

    def stop(self) -> None:
        """End run()."""
        ...


class Supervisor:
    """The process's threads, in the order of their start, and the reason to stop.

    As a context manager it stops everything on leaving, in reverse order: what own() and on_stop()
    were given, and only then the threads are joined at the place of join_on_stop().
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._stop = Event()
        self._stop_now = Event()
        self._guard = Lock()  # guards _cause
        self._cause: BaseException | None = None
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def on_stop(self, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this on leaving, before everything that was registered earlier."""
        self._stack.callback(callback, *args, **kwargs)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context; it ends on leaving, before everything that was registered earlier."""
        return self._stack.enter_context(context)

    def join_on_stop(self, *, seconds: float) -> None:
        """Join all threads on leaving, once every part that is owned from now on is stopped.

        Args:
            seconds: The longest wait for each thread.
        """
        self._stack.callback(self.join, seconds=seconds)

    def own(self, name: str, part: Part) -> None:
        """Run a part in a thread of its own, and stop it on leaving."""
        self._stack.callback(part.stop)
        self.run(name, part.run)

    def run(self, name: str, part: Callable[[], None]) -> None:
        """Run a function in a thread of its own; if it ends too early, so does the process."""
        thread = Thread(target=self._supervised, args=(name, part), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def fail(self, error: BaseException) -> None:
        """Stop everything because of this error."""
        with self._guard:
            self._cause = self._cause or error
        self._stop.set()

    @property
    def stopping(self) -> Event:
        """Event that is set as soon as it is time to stop."""
        return self._stop

    @property
    def stop_now(self) -> bool:
        """True after a second stop signal: nothing is worth waiting for any more."""
        return self._stop_now.is_set()

    def stop_on_signals(self) -> None:
        """End the process in order on SIGTERM and SIGINT; call it before any thread starts."""
        # Not a handler: Python runs it in the main thread once that comes back to bytecode, and a
        # signal that arrives just before the main thread blocks is not seen until the next one.
        # New threads inherit the mask, so that the kernel keeps the signal for sigwait.
        stop_signals.block()

        def stop() -> None:
            for event in (self._stop, self._stop_now):
                number = signal.sigwait(STOP_SIGNALS)
                log.info("stop_requested", signal=signal.Signals(number).name)
                event.set()

        Thread(target=stop, name="signals", daemon=True).start()

    def wait(self) -> BaseException | None:
        """Return once it is time to stop: the error that made it necessary, or None."""
        self._stop.wait()
        with self._guard:
            return self._cause

    def join(self, *, seconds: float) -> None:
        """Wait for all threads, at most this long for each."""
        for thread in self._threads:
            thread.join(seconds)
            if thread.is_alive():
                log.warning("thread_left_behind", error=f"{thread.name} still runs")

    def _supervised(self, name: str, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:  # a thread that calls sys.exit() would end unseen
            log.error("part_failed", part=name, error=repr(error), exc_info=True)
            self.fail(error)
        else:
            if not self._stop.is_set():
                self.fail(RuntimeError(f"{name} ended by itself"))
