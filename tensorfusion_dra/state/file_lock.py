"""A file lock between processes, which the kernel releases when its holder ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POLL_SECONDS: Final = 0.002


class FileLock:
    """A lock on a file; one thread of a process may use it at a time."""

    def __init__(self, path: Path, *, wait_seconds: float) -> None:
        """Open the file; lock nothing yet.

        Args:
            wait_seconds: Longest wait for another process that holds the lock.

        Raises:
            OSError: The file can be neither opened nor created.
        """
        self._wait_seconds = wait_seconds
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire_shared(self) -> None:
        """Take the lock until release(); other processes may hold it shared at the same time.

        Raises:
            TimeoutError: Another process held the lock exclusively for too long.
        """
        self._acquire(fcntl.LOCK_SH)

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock for the block; no other process holds it, shared or exclusive.

        Raises:
            TimeoutError: Another process held the lock for too long.
        """
        self._acquire(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self, kind: int) -> None:
        deadline = time.monotonic() + self._wait_seconds
        # Polling, because a blocking flock() has no timeout.
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    text = f"held by another instance for {self._wait_seconds:g} s"
                    raise TimeoutError(text) from None
                time.sleep(_POLL_SECONDS)
            else:
                return
