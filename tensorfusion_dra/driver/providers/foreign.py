"""Code of other packages: what is done about exceptions without a text, and about forks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LONGEST_TEXT: Final = 500
"""Length to which texts of other packages are cut."""


@contextmanager
def code() -> Iterator[None]:
    """Run other packages' code; a child process that leaves the block ends at once.

    A child of os.fork() that returns or raises, by sys.exit() for example, would otherwise stay in
    the driver's code, with copies of its sockets and locks.
    """
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(1)


def shown(error: BaseException) -> str:
    """Return an exception as text."""
    try:
        return repr(error)[:LONGEST_TEXT]
    except BaseException:  # noqa: BLE001 - the text is code of the other package as well
        return type(error).__name__
