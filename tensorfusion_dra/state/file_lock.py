"""A lock that processes share, and that ends with whoever holds it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POLL_SECONDS: Final = 0.002


class FileLock:
    """A lock on a file; one thread at a time."""

    def __init__(self, path: Path, *, wait_seconds: float) -> None:
        """Locks nothing yet.

        Args:
            wait_seconds: For whoever has it.

        Raises:
            OSError: The file can be neither opened nor made.
        """
        self._path = path
        self._wait_seconds = wait_seconds
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Others may hold it shared at the same time.

        Raises:
            TimeoutError: Another process held it alone for too long.
        """
        with self._held(fcntl.LOCK_SH):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody else holds it.

        Raises:
            TimeoutError: Another process held it for too long.
        """
        with self._held(fcntl.LOCK_EX):
            yield

    def close(self) -> None:
        """Ends the use of the file; may be repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def _held(self, kind: int) -> Iterator[None]:
        deadline = time.monotonic() + self._wait_seconds
        # Not a blocking call: it would wait as long as another process likes.
        while not self._taken(kind):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._path}: held by another process")
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _taken(self, kind: int) -> bool:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
