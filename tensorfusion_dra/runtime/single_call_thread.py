"""A thread that runs one call at a time, so that a call that hangs blocks only this thread."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
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


class SingleCallThread:
    """A thread that runs calls in the order of their arrival, never two at the same time.

    A call into a driver cannot be cancelled. So the caller returns after its timeout, the thread
    stays in the call, and no second thread is started. It starts with the first call and ends with
    the process: it is a daemon thread and not a ThreadPoolExecutor, because the interpreter waits
    at exit for the threads of an executor.
    """

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._free = threading.Semaphore(1)  # taken from the hand-over of a call until its end
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._since: float | None = None  # start of the running call; written by the thread

    def run(self, function: Callable[[], T], *, wait_seconds: float) -> T:
        """Run the function in the thread; return its result or raise its error.

        Raises:
            OverdueError: This call or an earlier one has been running for longer than the wait.
        """
        # An earlier call gets only the rest of its own time, so that callers do not wait again for
        # one that is known to hang.
        answer = self.submit(function, wait_seconds=max(0.0, wait_seconds - self._age()))
        if answer is None or not futures.wait([answer], timeout=wait_seconds).done:
            raise OverdueError(self._age())
        return answer.result()

    def submit(self, function: Callable[[], T], *, wait_seconds: float = 0.0) -> Future[T] | None:
        """Hand the function over; return None if an earlier call runs for longer than the wait."""
        if not self._free.acquire(timeout=wait_seconds):
            return None
        if self._thread.ident is None:
            self._thread.start()
        answer: Future[T] = Future()
        self._calls.put((function, answer))
        return answer

    def _age(self) -> float:
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def _serve(self) -> None:
        while True:
            function, answer = self._calls.get()
            self._since = time.monotonic()
            try:
                finish = partial(answer.set_result, function())
            except BaseException as error:  # noqa: BLE001 - raised again to the caller
                finish = partial(answer.set_exception, error)
            self._since = None
            self._free.release()
            finish()
