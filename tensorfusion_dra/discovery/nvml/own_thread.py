"""One thread that runs one call at a time, so that a call which hangs costs no more than itself."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class OverdueError(Exception):
    """A call has not come back in time; it is still running.

    Attributes:
        age_seconds: How long the running call has been running.
    """

    def __init__(self, age_seconds: float) -> None:
        super().__init__(f"still running after {age_seconds:.0f} s")
        self.age_seconds = age_seconds


class ClosedError(Exception):
    """The thread takes no more calls."""


class OwnThread:
    """Runs calls in one thread of its own, in the order they come, never two at once.

    A call into a driver cannot be cancelled. So the caller leaves when its patience ends, the
    thread stays in the call, and nobody starts another thread beside it. It is a daemon thread and
    no ThreadPoolExecutor, because the interpreter waits at exit for an executor's threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._free = threading.Semaphore(1)  # held from handing a call over until it is done
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread, _closed
        self._thread: threading.Thread | None = None
        self._closed = False
        self._since: float | None = None  # when the running call began; written by the thread

    def run(self, function: Callable[[], T], *, wait_seconds: float) -> T:
        """What the function returns; what it raises is raised here.

        Raises:
            OverdueError: It, or an earlier call, has been running for longer than that.
            ClosedError: close() came first.
        """
        self._start()
        # An earlier call gets what is left of its own time: one that is known to hang is not
        # waited for again.
        since = self._since
        patience = wait_seconds if since is None else since + wait_seconds - time.monotonic()
        if not self._free.acquire(timeout=max(0.0, patience)):
            raise OverdueError(self._age())
        answer: Future[T] = Future()
        self._hand_over(function, answer)
        try:
            return answer.result(timeout=wait_seconds)
        except TimeoutError:
            if answer.done():  # it came at the last moment, or the call itself raised this
                return answer.result()
            raise OverdueError(self._age()) from None

    def close(self, *, wait_seconds: float) -> None:
        """Ends the thread after the call it is in, and waits for that as long as given."""
        with self._lock:
            self._closed = True
            self._calls.put(None)
            thread = self._thread
        if thread is not None:
            thread.join(wait_seconds)

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                raise ClosedError
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()

    def _hand_over(self, function: Callable[[], T], answer: Future[T]) -> None:
        with self._lock:
            if self._closed:  # behind the end mark nobody would take it
                self._free.release()
                raise ClosedError
            self._calls.put((function, answer))

    def _age(self) -> float:
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, answer = call
            self._since = time.monotonic()
            outcome: Any = None
            error: BaseException | None = None
            try:
                outcome = function()
            except BaseException as raised:  # noqa: BLE001 - raised again to the caller
                error = raised
            self._since = None
            self._free.release()
            if error is None:
                answer.set_result(outcome)
            else:
                answer.set_exception(error)
