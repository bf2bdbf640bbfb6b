"""Locks that note which others their thread holds, in place of those of `threading`."""

import sys
import threading
from typing import Any, Final

from tests.support.sources import PACKAGE

nested: Final[set[tuple[str, str]]] = set()
"""Files of the package that made two locks: of one that was held, and of one that was taken then.

Locks of a Condition or an Event have a * after the file. Locks that others made are not noted.
"""
_PACKAGE: Final = f"{PACKAGE}/"
_held: Final = threading.local()


class NotedLock:
    """A lock of `threading`."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        frame, ending = sys._getframe(2), ""
        while frame.f_back and frame.f_code.co_filename == threading.__file__:
            frame, ending = frame.f_back, "*"
        _, is_ours, file = frame.f_code.co_filename.partition(_PACKAGE)
        self.file = is_ours and f"{file}{ending}"

    def acquire(self, *arguments: Any, **more: Any) -> bool:
        is_taken: bool = self._lock.acquire(*arguments, **more)
        if is_taken and self.file:
            mine: list[NotedLock] = _held.__dict__.setdefault("locks", [])
            nested.update((each.file, self.file) for each in mine if each is not self)
            mine.append(self)
        return is_taken

    def release(self) -> None:
        if self in (mine := _held.__dict__.get("locks", [])):
            mine.remove(self)
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def install() -> None:
    """Have modules that are imported from now on make such locks."""
    for name in ("Lock", "RLock"):
        made = getattr(threading, name)
        setattr(threading, name, lambda made=made: NotedLock(made()))
