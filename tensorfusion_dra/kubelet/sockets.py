"""Paths of an instance's two sockets, a lock for their files, and removal of dead ones.

An instance holds the lock of exclusive() while it binds a socket or removes a dead one. Without the
lock, a socket that is bound but does not listen yet would look dead: it refuses connections as a
dead one does.
"""

import base64
import hashlib
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import FatalError, InputError, RetryableError
from tensorfusion_dra.state.file_lock import FileLock

MAX_PATH_BYTES: Final = 107
"""sun_path holds 108 bytes, including the final NUL."""

_TOKEN_BYTES: Final = 3
LOCK_FILE: Final = "sockets.lock"
_LOCK_SECONDS: Final = 10.0
"""Another instance holds the lock for milliseconds. If its process is stopped (SIGSTOP) in between,
it holds the lock until it ends."""
_PROBE_SECONDS: Final = 1.0


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:8]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


_OURS: Final = _digest(names.DRIVER)
_INSTANCE: Final = r"[A-Za-z0-9_-]{1,63}"
_HASHED: Final = f"[A-Za-z0-9_-]{{{len(_OURS)}}}"
_TOKEN: Final = f"[0-9a-f]{{{2 * _TOKEN_BYTES}}}"
# Names of this driver's registration sockets and DRA sockets, from any pod. The second one is
# for the driver's own folder only, which contains no other driver's sockets.
OUR_REGISTRATION: Final = re.compile(
    f"{re.escape(names.DRIVER)}(-{_INSTANCE})?-reg\\.sock"
    f"|dra-{re.escape(_OURS)}{_HASHED}-reg\\.sock"
    f"|\\.dra-{re.escape(_OURS)}-{_TOKEN}"
)
OUR_DRA: Final = re.compile(f"dra(-{_INSTANCE})?\\.sock|\\.{_TOKEN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPaths:
    """The sockets of this instance. The kubelet dials them at the same paths on the host."""

    registration: Path
    dra: Path


def paths(*, registry_folder: Path, data_folder: Path, pod_uid: str) -> SocketPaths:
    """Return the socket paths, which contain the pod's UID if there is one.

    Thus two instances of a rolling update never share a path. If the name with the UID is too long
    for a socket, a shorter one with hashes is used. The first two names are those of Kubernetes'
    own helper (k8s.io/dynamic-resource-allocation/kubeletplugin, 1.37). The helper's third name is
    a single hash of driver and UID, which cannot be distinguished from another driver's name.

    Raises:
        InputError: A folder's path is too long for any of the names.
    """
    if not pod_uid:
        return SocketPaths(
            registration=_first_fitting(registry_folder, [f"{names.DRIVER}-reg.sock"]),
            dra=_first_fitting(data_folder, ["dra.sock"]),
        )
    instance = _digest(pod_uid)
    return SocketPaths(
        registration=_first_fitting(
            registry_folder,
            [
                f"{names.DRIVER}-{pod_uid}-reg.sock",
                f"{names.DRIVER}-{instance}-reg.sock",
                f"dra-{_OURS}{instance}-reg.sock",
            ],
        ),
        dra=_first_fitting(data_folder, [f"dra-{pod_uid}.sock", f"dra-{instance}.sock"]),
    )


def hidden(path: Path) -> Path:
    """Return the temporary path under which a socket is bound before it is renamed.

    It is never longer than the final path. The kubelet ignores names that begin with a dot.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    ours = f"dra-{_OURS}-" if OUR_REGISTRATION.fullmatch(path.name) else ""
    return path.with_name(f".{ours}{token}")


def _first_fitting(folder: Path, file_names: Sequence[str]) -> Path:
    for name in file_names:
        if len(str(folder / name).encode()) <= MAX_PATH_BYTES:
            return folder / name
    raise InputError(
        f"socket {folder / file_names[-1]}: {len(str(folder / file_names[-1]).encode())} bytes, "
        f"expected at most {MAX_PATH_BYTES}"
    )


@contextmanager
def exclusive(data_folder: Path, *, wait_seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Keep other instances on this node from binding or removing sockets during the block.

    Raises:
        RetryableError: Another instance held the lock all the time, or the folder cannot be
            written.
    """
    path = data_folder / LOCK_FILE
    with ExitStack() as stack:
        try:
            data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = FileLock(path, wait_seconds=wait_seconds)
            stack.callback(lock.close)
            stack.enter_context(lock.exclusive())
        except OSError as error:
            raise RetryableError(f"{path}: {error.strerror or error}") from error
        yield


def remove_stale(path: Path) -> None:
    """Remove a socket that a dead process left at this path.

    Raises:
        FatalError: A live process serves the socket, or the file is not a socket. It stays as it
            is.
    """
    try:
        if is_dead(path):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise FatalError(f"{path}: {error.strerror or error}, expected a dead socket") from error
    if path.is_socket():
        raise FatalError(f"{path}: another process serves this socket")
    if path.exists():
        raise FatalError(f"{path}: found a file that is no socket, expected nothing")


def is_dead(path: Path) -> bool:
    """Return True if there is a socket at this path on which no process listens."""
    if path.is_symlink() or not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # too busy to answer, removed in the meantime, or another kind of socket
    return False


def sweep(own: SocketPaths) -> tuple[Path, ...]:
    """Remove dead sockets of other instances of this driver and return their paths.

    A killed process leaves its sockets behind, and the kubelet dials a registration socket as long
    as it exists. Only files with names that instances of this driver use are examined.

    Raises:
        RetryableError: Another instance holds the lock, or a folder cannot be read or written.
    """
    removed: list[Path] = []
    with exclusive(own.dra.parent, wait_seconds=0):
        for ours, pattern in ((own.registration, OUR_REGISTRATION), (own.dra, OUR_DRA)):
            try:
                for path in sorted(ours.parent.iterdir()):
                    if pattern.fullmatch(path.name) and path != ours and is_dead(path):
                        path.unlink(missing_ok=True)
                        removed.append(path)
            except FileNotFoundError:
                continue  # there is no folder yet
            except OSError as error:
                raise RetryableError(f"{ours.parent}: {error.strerror or error}") from error
    return tuple(removed)
