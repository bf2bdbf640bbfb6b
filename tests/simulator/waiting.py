"""Waits for what other threads do."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.waiting import PATIENCE_SECONDS

T = TypeVar("T")


def eventually(find: Callable[[], T]) -> T:
    """Return what the function finds as soon as it finds something true."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = find()
        if found:
            return found
        assert time.monotonic() < until, f"waited {PATIENCE_SECONDS:g} s in vain"
        time.sleep(0.01)


def always(holds: Callable[[], bool], *, seconds: float = 0.3) -> None:
    """Returns after the time if the condition held all along."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert holds()
        time.sleep(0.01)
