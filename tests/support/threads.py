"""Loops that run in a thread of their own for a part of a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from tests.support.waiting import PATIENCE_SECONDS


@contextmanager
def running(loop: Callable[[], object], *, stop: Callable[[], object]) -> Iterator[Thread]:
    """Run a loop for the block; at its end, stop the loop and check that it ends."""
    thread = Thread(target=loop)
    thread.start()
    try:
        yield thread
    finally:
        stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
