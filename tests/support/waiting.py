"""Waits for other threads and processes."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS: Final = 120.0
"""Longest wait for an event that must happen.

A wait ends as soon as the event happens, so this only has to be longer than anything takes on the
busiest machine.
"""

FOREVER: Final = 3600.0
"""A pause, limit or interval that never elapses during a test."""


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Return True as soon as the condition holds, or False after the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def awaited(find: Callable[[], T]) -> T:
    """Call the function until it returns something true, and return that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := find()):
        assert time.monotonic() < deadline, f"nothing was found within {PATIENCE_SECONDS:g} s"
        time.sleep(0.01)
    return found
