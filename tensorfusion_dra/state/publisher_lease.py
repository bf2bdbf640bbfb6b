"""Lease of the publishing instance on a node: of the newest live one that was able to publish."""

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

_GUARD_FILE: Final = "publishers.lock"
_NAME: Final = re.compile(r"publisher-([0-9]{1,18})\.lock")


class PublisherLease:
    """The lease to publish this node's devices; for one thread.

    During a rolling update, two releases may describe the same cards differently, and each would
    overwrite the slices of the other. So only the newest instance publishes, as soon as it is able
    to. An update that cannot publish leaves the lease with the old instance.

    Each instance that takes the lease creates a file with the next higher number and locks it.
    The kernel releases the lock when the process ends, even after a crash. Example: the old
    instance holds publisher-1.lock; the new one creates publisher-2.lock, and from then on held()
    is False in the old one. If the new one dies, its lock is free and held() is True again.
    """

    def __init__(self, folder: Path) -> None:
        """Take nothing yet; all instances of the node share this folder."""
        self._folder = folder
        self._number = 0
        self._descriptor: int | None = None

    def take(self) -> None:
        """Become the newest instance; further calls do nothing.

        Raises:
            RetryableError: Another instance is taking the lease now, or the disk is full or
                read-only.
        """
        if self._descriptor is not None:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self._folder / _GUARD_FILE, flags, 0o600), "wb") as guard:
                # One instance at a time: the file of another one is not locked at first.
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                numbers = self._numbers()
                for number in numbers:
                    if not self._is_alive(number):
                        self._path(number).unlink(missing_ok=True)
                self._number = max(numbers, default=0) + 1
                descriptor = os.open(self._path(self._number), flags | os.O_EXCL, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self._descriptor = descriptor
        except OSError as error:
            subject = error.filename or self._folder / _GUARD_FILE
            raise RetryableError(f"{subject}: {error.strerror or error}") from error

    def held(self) -> bool:
        """Return False while an instance is alive that took the lease after this one.

        Also return True if that cannot be determined: two publishers are better than none.
        """
        if self._descriptor is None:
            return True
        try:
            return not any(self._is_alive(each) for each in self._numbers() if each > self._number)
        except OSError:
            return True

    def release(self) -> None:
        """Pass the lease to the newest other instance; call it when this instance stops."""
        if self._descriptor is not None:
            self._path(self._number).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _numbers(self) -> list[int]:
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return [int(match[1]) for match in found if match]

    def _is_alive(self, number: int) -> bool:
        try:
            with self._path(number).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _path(self, number: int) -> Path:
        return self._folder / f"publisher-{number}.lock"
