"""Reads from the API server side by side, for one call of the kubelet."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from tensorfusion_dra.core.errors import DriverError

Item = TypeVar("Item")
Found = TypeVar("Found")

_MOST: Final = 16
"""Reads of one call at the same time; a pod has few claims, and a claim few pods."""


def read(ask: Callable[[Item], Found], items: Sequence[Item]) -> list[Found | DriverError]:
    """Return the result of ask() for each item, or the error that it raised, in the same order.

    One item is read by the calling thread; the threads for more end with this call.
    """

    def outcome(item: Item) -> Found | DriverError:
        try:
            return ask(item)
        except DriverError as error:
            return error

    if len(items) < 2:
        return [outcome(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _MOST), thread_name_prefix="read") as threads:
        # With the caller's context, which has the call's ID for the log.
        running = [threads.submit(copy_context().run, outcome, item) for item in items]
        return [each.result() for each in running]
