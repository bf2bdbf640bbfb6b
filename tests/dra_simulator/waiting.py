"""Waits for conditions that other threads bring about."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.waiting import PATIENCE_SECONDS

T = TypeVar("T")


def eventually(find: Callable[[], T]) -> T:
    """Call the function until it returns something true, and return that."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = find()
        if found:
            return found
        assert time.monotonic() < until, f"condition not met within {PATIENCE_SECONDS:g} s"
        time.sleep(0.01)


def always(holds: Callable[[], bool], *, seconds: float = 0.3) -> None:
    """Assert that the condition holds all the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert holds()
        time.sleep(0.01)
