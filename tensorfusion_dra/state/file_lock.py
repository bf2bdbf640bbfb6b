"""A lock on a file, between processes, that also counts changes of what it guards."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POLL_SECONDS: Final = 0.002


class FileLock:
    """A lock on a file; one thread of a process may use it at a time.

    The file's size is the number of changes that were counted: a longer file needs no block of the
    disk, so a change can be counted on a full one.
    """

    def __init__(self, path: Path, *, wait_seconds: float) -> None:
        """Open the file; lock nothing yet.

        Args:
            wait_seconds: Longest wait for another process that holds the lock.

        Raises:
            OSError: The file can be neither opened nor created.
        """
        self._wait_seconds = wait_seconds
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock for the block; no other process holds it.

        Raises:
            TimeoutError: Another process held the lock for too long.
        """
        deadline = time.monotonic() + self._wait_seconds
        # Polling, because a blocking flock() has no timeout.
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"held by another instance for {self._wait_seconds:g} s"
                    ) from None
                time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def changes(self) -> int:
        """Return how many changes were counted, by all processes; the lock need not be held."""
        return os.fstat(self._descriptor).st_size

    def count_change(self) -> int:
        """Count a change; return the new number. Call it while the lock is held.

        Raises:
            OSError: The disk is read-only.
        """
        changes = self.changes() + 1
        os.ftruncate(self._descriptor, changes)
        return changes

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
