"""Logged events as tests see them."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.testing import LogCapture
from structlog.typing import EventDict, WrappedLogger

_captures: list[LogCapture] = []


def install() -> None:
    """Have capture_logs() see every event from now on."""
    structlog.configure(processors=[_offer, *structlog.get_config()["processors"]])


def _offer(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for capture in _captures[-1:]:
        capture(logger, method, event)  # raises DropEvent, so nothing is printed
    return event


@contextmanager
def capture_logs() -> Iterator[list[EventDict]]:
    """Yield the events that are logged during the block, by all threads.

    Unlike the function of this name in structlog, it leaves the list of processors alone. Threads
    that run before or after the block go through that list without a lock, and one that finds it
    replaced ends with "PrintLogger.msg() got an unexpected keyword argument".
    """
    capture = LogCapture()
    _captures.append(capture)
    try:
        yield capture.entries
    finally:
        _captures.remove(capture)
