"""Reading of files that containers can write: never through a link, never waiting, never whole."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def opened(path: str, *, access: int = os.O_RDONLY) -> Iterator[int]:
    """Open a regular file; yield its descriptor.

    A tenant may have put a link to another file, a pipe or a device in its place.

    Args:
        path: Of the file.
        access: os.O_RDONLY or os.O_RDWR.

    Raises:
        OSError: It cannot be opened; FileNotFoundError if there is nothing at the path.
    """
    descriptor = os.open(path, access | _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "found something else, expected a regular file", path)
        yield descriptor
    finally:
        os.close(descriptor)
