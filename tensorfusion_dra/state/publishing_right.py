"""Election of the publishing instance on a node: the newest live one that was able to publish."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

_GUARD_FILE: Final = "publishers.lock"
_NAME: Final = re.compile(r"publisher-([0-9]{1,18})\.lock")


class PublishingRight:
    """The right to publish this node's devices; for one thread.

    During a rolling update, two releases may describe the same cards differently, and each would
    overwrite the slices of the other. So only the newest instance publishes, as soon as it is able
    to. An update that cannot publish leaves the right with the old instance.

    Each instance that takes the right creates a file with the next higher number and locks it.
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
            RetryableError: Another instance is taking the right now, or the disk is full or
                read-only.
        """
        if self._descriptor is not None:
            return
        try:
            with self._guarded():
                # Files of dead instances go; the new number is above those of the live ones.
                alive = [number for number in self._numbers() if self._is_alive(number)]
                self._number = max(alive, default=0) + 1
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(self._path(self._number), flags, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self._descriptor = descriptor
        except OSError as error:
            subject = error.filename or self._folder / _GUARD_FILE
            raise RetryableError(f"{subject}: {error.strerror or error}") from error

    def held(self) -> bool:
        """Return False while an instance is alive that took the right after this one.

        Also return True if that cannot be determined: two publishers are better than none.
        """
        if self._descriptor is None:
            return True
        try:
            newer = [number for number in self._numbers() if number > self._number]
            if not newer:
                return True
            with self._guarded():
                return not any(self._is_alive(number) for number in newer)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def release(self) -> None:
        """Pass the right to the newest other instance; call it when this instance stops."""
        if self._descriptor is not None:
            self._path(self._number).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _numbers(self) -> list[int]:
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _is_alive(self, number: int) -> bool:
        """Return True if the instance of this number is alive; otherwise remove its file."""
        path = self._path(number)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    def _path(self, number: int) -> Path:
        return self._folder / f"publisher-{number}.lock"

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keep other instances from opening and removing these files, also inside take()."""
        descriptor = os.open(
            self._folder / _GUARD_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)
