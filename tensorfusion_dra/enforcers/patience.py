"""Bounds on what a process that hangs can cost the calls that need it."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Semaphore
from typing import Final

from tensorfusion_dra.core.claims.enforcer import SilentEnforcerError
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import folders
from tensorfusion_dra.state.file_lock import FileLock

MAX_WAITING: Final = 16
_TURN_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 5.0


class HungEnforcerError(SilentEnforcerError):
    """A call waited in vain for the process behind an enforcer."""


class Patience:
    """Lets a few calls at a time wait for one process; safe for all threads.

    A call that finds MAX_WAITING others waits a second for its turn, because a process that works
    answers many within that time, and the kubelet repeats a failed call only much later. Once a
    call has waited in vain, further ones fail at once for QUIET_SECONDS.

    Example: memory-limits hangs, and 20 claims need it. 16 calls wait for 5 s and 4 for 1 s. A
    claim that comes in the next 5 s is refused at once, and the first one after that waits again.
    """

    def __init__(self, subject: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._subject = subject
        self._clock = clock
        self._free = Semaphore(MAX_WAITING)
        self._silent_until = -math.inf  # replaced as a whole

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Allow the block to wait for the process; it raises HungEnforcerError if it did in vain.

        Raises:
            SilentEnforcerError: Others wait already, or one waited in vain a moment ago.
        """
        if self._clock() < self._silent_until:
            raise SilentEnforcerError(
                f"{self._subject}: found no answer a moment ago, expected one; it is asked again "
                f"after {QUIET_SECONDS:g} s"
            )
        if not self._free.acquire(timeout=_TURN_SECONDS):
            raise SilentEnforcerError(
                f"{self._subject}: found {MAX_WAITING} calls that wait for it, expected answers"
            )
        try:
            yield
        except HungEnforcerError:
            self._silent_until = self._clock() + QUIET_SECONDS
            raise
        finally:
            self._free.release()


@contextmanager
def node_lock(path: Path, *, wait_seconds: float) -> Iterator[None]:
    """Hold the lock of one enforcer, which all threads and instances on the node share.

    Raises:
        HungEnforcerError: Another call held it for the whole time.
        RetryableError: The file cannot be opened.
    """
    try:
        folders.make(path.parent)
        lock = FileLock(path, wait_seconds=max(0.0, wait_seconds))
        try:
            with lock.exclusive():
                yield
        finally:
            lock.close()
    except TimeoutError as error:
        text = f"{path}: found another call that waits for the enforcer, expected none"
        raise HungEnforcerError(text) from error
    except OSError as error:
        raise RetryableError(f"{path}: {error.strerror or error}") from error
