"""Owner of the process's threads: when one of them dies, the process ends.

A driver with missing threads would look healthy and do only a part of its work.
"""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import Event, Thread
from typing import Final, ParamSpec, Protocol, Self, TypeVar

import structlog

from tensorfusion_dra.runtime import stop_signals
from tensorfusion_dra.runtime.stop_signals import STOP_SIGNALS

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
    """The process's threads in the order of their start, and the reason to stop.

    As a context manager, it stops everything on leaving, in reverse order of registration: it stops
    the parts of own() and calls the callbacks of on_stop(). on_stop(self.join) sets the point in
    this order at which the threads are joined.

    Attributes:
        stopping: Set when it is time to stop.
        stop_now: Set by a second stop signal: stop without waiting for anything.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.stopping: Final = Event()
        self.stop_now: Final = Event()
        self._cause: BaseException | None = None
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._stack.close()

    def on_stop(self, callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this on leaving, before everything that was registered earlier."""
        self._stack.callback(callback, *args, **kwargs)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context; it ends on leaving, before everything that was registered earlier."""
        return self._stack.enter_context(context)

    def own(self, name: str, part: Part) -> None:
        """Run a part in a thread of its own, and stop it on leaving."""
        self._stack.callback(part.stop)
        self.run(name, part.run)

    def run(self, name: str, part: Callable[[], None]) -> None:
        """Run a function in a thread of its own; if it ends too early, the whole process stops."""

        def supervised() -> None:
            try:
                part()
                if not self.stopping.is_set():
                    self.fail(RuntimeError(f"{name} ended by itself"))
            # All: otherwise a thread that calls sys.exit() would end unnoticed.
            except BaseException as error:
                log.error("part_failed", part=name, error=repr(error), exc_info=True)
                self.fail(error)

        thread = Thread(target=supervised, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def fail(self, error: BaseException) -> None:
        """Stop everything because of this error."""
        self._cause = self._cause or error
        self.stopping.set()

    def stop_on_signals(self) -> None:
        """Stop the process in order on SIGTERM and SIGINT; call it before any thread starts."""
        # Not a Python handler: it runs in the main thread, and only once that executes bytecode
        # again. A signal that arrives just before the main thread blocks would go unnoticed until
        # the next one. New threads inherit the mask, so the kernel keeps the signal for sigwait().
        stop_signals.block()

        def stop() -> None:
            for event in (self.stopping, self.stop_now):
                number = signal.sigwait(STOP_SIGNALS)
                log.info("stop_requested", signal=signal.Signals(number).name)
                event.set()

        Thread(target=stop, name="signals", daemon=True).start()

    def wait(self) -> BaseException | None:
        """Wait until it is time to stop; return the error that caused it, or None."""
        self.stopping.wait()
        return self._cause

    def join(self, *, seconds: float) -> None:
        """Wait for all threads, at most this long for each."""
        for thread in self._threads:
            thread.join(seconds)
            if thread.is_alive():
                log.warning("thread_left_behind", error=f"{thread.name} still runs")
