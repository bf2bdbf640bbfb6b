"""How sockets are bound, and how those of dead processes are told from live ones.

Whoever binds a socket or removes a dead one holds the lock of alone() meanwhile: a socket
that is bound but not yet listened on refuses connections just as a dead one does.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.sockets import SocketPaths

LOCK_FILE: Final = "sockets.lock"
_LOCK_SECONDS: Final = 10.0
"""Others hold it for milliseconds; one that is stopped in there holds it until it ends."""
_LOCK_POLL_SECONDS: Final = 0.02
_PROBE_SECONDS: Final = 1.0


@contextmanager
def exclusive(data_folder: Path, *, wait_seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """No other instance on this node binds or removes sockets during the block.

    The kernel gives the lock free when its holder ends, however that happens.

    Raises:
        RetryableError: Another instance held it all the time, or the folder cannot be written.
    """
    path = data_folder / LOCK_FILE
    deadline = time.monotonic() + wait_seconds
    try:
        data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RetryableError(f"{path}: {error.strerror or error}") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise RetryableError(
                        f"{path}: held by another instance for {wait_seconds:g} s"
                    ) from error
                time.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def remove_stale(path: Path) -> None:
    """Removes a socket that a dead process left at this path.

    Raises:
        FatalError: Somebody serves there, or it is no socket; it is left alone.
    """
    try:
        if is_dead(path):
            path.unlink(missing_ok=True)
        elif path.is_socket():
            raise FatalError(f"{path}: another process serves this socket")
        elif path.exists():
            raise FatalError(f"{path}: found a file that is no socket, expected nothing")
    except OSError as error:
        raise FatalError(f"{path}: {error.strerror or error}, expected a dead socket") from error


def is_dead(path: Path) -> bool:
    """Whether there is a socket that nobody listens on.

    Raises:
        OSError: It is a socket of another kind, or may not be asked.
    """
    if path.is_symlink() or not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except (TimeoutError, FileNotFoundError):
            return False  # too busy to answer, or gone meanwhile
    return False


def sweep(own: SocketPaths) -> tuple[Path, ...]:
    """Removes dead sockets of other instances of this driver; those removed.

    A process that is killed leaves its sockets behind, and the kubelet dials a registration socket
    as long as it exists. Only names that instances of this driver take are looked at.

    Raises:
        RetryableError: Another instance is binding; or a folder cannot be read or written.
    """
    folders = (
        (own.registration.parent, sockets.is_our_registration),
        (own.dra.parent, sockets.is_our_dra),
    )
    with exclusive(own.dra.parent, wait_seconds=0):
        return tuple(
            path
            for folder, is_ours in folders
            for path in _entries(folder)
            if is_ours(path.name) and path not in (own.registration, own.dra)
            if _removed_dead(path)
        )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RetryableError(f"{folder}: {error.strerror or error}") from error


def _removed_dead(path: Path) -> bool:
    try:
        dead = is_dead(path)
    except OSError:
        return False  # a socket of another kind, which is none of ours
    try:
        if dead:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RetryableError(f"{path}: {error.strerror or error}") from error
    return dead
