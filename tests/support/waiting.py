"""Waits for what other threads and processes do."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    """True as soon as the condition holds; False after the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
