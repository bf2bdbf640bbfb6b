"""A thread that runs one call at a time, so that a call that hangs blocks only this thread."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
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


class SingleCallThread:
    """A thread that runs calls in the order of their arrival, never two at the same time.

    A call into a driver cannot be cancelled. So the caller returns after its timeout, the thread
    stays in the call, and no second thread is started. It is a daemon thread and not a
    ThreadPoolExecutor, because the interpreter waits at exit for the threads of an executor.
    """

    def __init__(self, name: str) -> None:
        """Start the thread with the first call."""
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._free = threading.Semaphore(1)  # taken from the hand-over of a call until its end
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._closed = False
        self._since: float | None = None  # start of the running call; written by the thread

    def run(self, function: Callable[[], T], *, wait_seconds: float) -> T:
        """Run the function in the thread; return its result or raise its error.

        Raises:
            OverdueError: This call or an earlier one has been running for longer than the wait.
            ClosedError: close() was called first.
        """
        if self._closed:
            raise ClosedError
        # An earlier call gets only the rest of its own time, so that callers do not wait again for
        # one that is known to hang.
        since = self._since
        timeout = wait_seconds if since is None else since + wait_seconds - time.monotonic()
        if not self._free.acquire(timeout=max(0.0, timeout)):
            raise OverdueError(self._age())
        answer = self._hand_over(function)
        try:
            return answer.result(timeout=wait_seconds)
        except TimeoutError:
            if answer.done():  # done at the last moment, or raised by the function itself
                return answer.result()
            raise OverdueError(self._age()) from None

    def submit(self, function: Callable[[], T]) -> Future[T] | None:
        """Hand the function over without waiting.

        Returns None if an earlier call is running, or if close() was called first.
        """
        if self._closed or not self._free.acquire(blocking=False):
            return None
        return self._hand_over(function)

    def close(self, *, wait_seconds: float) -> None:
        """End the thread after its current call; wait at most this long for it."""
        self._closed = True
        self._calls.put(None)
        if self._thread.ident is not None:
            self._thread.join(wait_seconds)

    def _hand_over(self, function: Callable[[], T]) -> Future[T]:
        """Pass the function to the thread; the caller has taken _free, so it is alone here."""
        if self._thread.ident is None:
            self._thread.start()
        answer: Future[T] = Future()
        self._calls.put((function, answer))
        return answer

    def _age(self) -> float:
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, answer = call
            self._since = time.monotonic()
            try:
                finish = partial(answer.set_result, function())
            except BaseException as error:  # noqa: BLE001 - raised again to the caller
                finish = partial(answer.set_exception, error)
            self._since = None
            self._free.release()
            finish()
