"""Waits for conditions that other threads bring about."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.waiting import PATIENCE_SECONDS

T = TypeVar("T")


def eventually(find: Callable[[], T]) -> T:
    """Call the function until it returns something true, and return that."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := find()):
        assert time.monotonic() < until, f"condition not met within {PATIENCE_SECONDS:g} s"
        time.sleep(0.01)
    return found
