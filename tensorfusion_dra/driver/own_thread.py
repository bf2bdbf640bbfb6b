"""A thread that runs one call at a time, so that a call that hangs blocks only this thread."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class OverdueError(Exception):
    """A call has not returned in time and is still running.

    Attributes:
        age_seconds: Time for which the call has been running.
    """

    def __init__(self, age_seconds: float) -> None:
        super().__init__(f"still running after {age_seconds:.0f} s")
        self.age_seconds = age_seconds


class ClosedError(Exception):
    """The thread accepts no more calls."""


class OwnThread:
    """A thread that runs calls in the order of their arrival, never two at the same time.

    A call into a driver cannot be cancelled. So the caller returns after its timeout, the thread
    stays in the call, and no second thread is started. It is a daemon thread and not a
    ThreadPoolExecutor, because the interpreter waits at exit for the threads of an executor.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._free = threading.Semaphore(1)  # taken from the hand-over of a call until its end
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread, _closed
        self._thread: threading.Thread | None = None
        self._closed = False
        self._since: float | None = None  # start of the running call; written by the thread

    def run(self, function: Callable[[], T], *, wait_seconds: float) -> T:
        """Run the function in the thread; return its result or raise its error.

        Raises:
            OverdueError: This call or an earlier one has been running for longer than the wait.
            ClosedError: close() was called first.
        """
        self._start()
        # An earlier call gets only the rest of its own time, so that callers do not wait again for
        # one that is known to hang.
        since = self._since
        timeout = wait_seconds if since is None else since + wait_seconds - time.monotonic()
        if not self._free.acquire(timeout=max(0.0, timeout)):
            raise OverdueError(self._age())
        answer: Future[T] = Future()
        self._hand_over(function, answer)
        try:
            return answer.result(timeout=wait_seconds)
        except TimeoutError:
            if answer.done():  # done at the last moment, or raised by the function itself
                return answer.result()
            raise OverdueError(self._age()) from None

    def submit(self, function: Callable[[], T]) -> Future[T] | None:
        """Hand the function over without waiting; return None if an earlier call is running.

        Raises:
            ClosedError: close() was called first.
        """
        self._start()
        if not self._free.acquire(blocking=False):
            return None
        answer: Future[T] = Future()
        self._hand_over(function, answer)
        return answer

    def close(self, *, wait_seconds: float) -> None:
        """End the thread after its current call; wait at most this long for it."""
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
            if self._closed:  # after the end mark in the queue the call would never run
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
