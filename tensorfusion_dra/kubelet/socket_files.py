"""Locking for socket files, and removal of the sockets of dead processes.

An instance holds the lock of exclusive() while it binds a socket or removes a dead one. Without the
lock, a socket that is bound but does not listen yet would look dead: it refuses connections as a
dead one does.
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
"""Another instance holds the lock for milliseconds. If its process is stopped (SIGSTOP) in between,
it holds the lock until it ends."""
_LOCK_POLL_SECONDS: Final = 0.02
_PROBE_SECONDS: Final = 1.0


@contextmanager
def exclusive(data_folder: Path, *, wait_seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Keep other instances on this node from binding or removing sockets during the block.

    The kernel releases the lock when its holder ends, however that happens.

    Raises:
        RetryableError: Another instance held the lock all the time, or the folder cannot be
            written.
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
    """Remove a socket that a dead process left at this path.

    Raises:
        FatalError: A live process serves the socket, or the file is not a socket. It stays as it
            is.
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
    """Return True if there is a socket at this path on which no process listens.

    Raises:
        OSError: It is another kind of socket, or connecting to it is not permitted.
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
            return False  # too busy to answer, or removed in the meantime
    return False


def sweep(own: SocketPaths) -> tuple[Path, ...]:
    """Remove dead sockets of other instances of this driver and return their paths.

    A killed process leaves its sockets behind, and the kubelet dials a registration socket as long
    as it exists. Only files with names that instances of this driver use are examined.

    Raises:
        RetryableError: Another instance holds the lock, or a folder cannot be read or written.
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
        return False  # another kind of socket, so not one of this driver's
    try:
        if dead:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RetryableError(f"{path}: {error.strerror or error}") from error
    return dead
