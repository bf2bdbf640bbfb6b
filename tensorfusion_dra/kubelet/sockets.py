"""Where the two sockets lie, under which names, and how one is bound."""

import base64
import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import FatalError, InputError

MAX_PATH_BYTES: Final = 107
"""sun_path holds 108 bytes with the final NUL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPaths:
    """The sockets of this instance; the kubelet dials them under the same paths on the host."""

    registration: Path
    dra: Path


def paths(*, registry_folder: Path, data_folder: Path, pod_uid: str) -> SocketPaths:
    """The socket paths, with the pod's UID in them if there is one.

    Two instances of a rolling update then never share a path. Where the name with the UID is too
    long for a socket, shorter ones with hashes follow, in the order of Kubernetes' own helper
    (k8s.io/dynamic-resource-allocation/kubeletplugin, 1.37).

    Raises:
        InputError: A folder is too long for any of the names.
    """
    if not pod_uid:
        return SocketPaths(
            registration=_first_fitting(registry_folder, [f"{names.DRIVER}-reg.sock"]),
            dra=_first_fitting(data_folder, ["dra.sock"]),
        )
    short = _digest(pod_uid, 8)
    shortest = _digest(f"{names.DRIVER}\0{pod_uid}", 16)
    return SocketPaths(
        registration=_first_fitting(
            registry_folder,
            [
                f"{names.DRIVER}-{pod_uid}-reg.sock",
                f"{names.DRIVER}-{short}-reg.sock",
                f"dra-{shortest}-reg.sock",
            ],
        ),
        dra=_first_fitting(data_folder, [f"dra-{pod_uid}.sock", f"dra-{short}.sock"]),
    )


def make_way(path: Path) -> None:
    """Removes a socket that a dead process left at this path.

    Raises:
        FatalError: Somebody serves there, or it is no socket; it is left alone.
    """
    if not path.exists():
        return
    if not path.is_socket():
        raise FatalError(f"{path}: found a file that is no socket, expected nothing")
    probe = socket.socket(socket.AF_UNIX)
    probe.settimeout(1)
    try:
        probe.connect(str(path))
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FatalError(f"{path}: {error.strerror or error}, expected a dead socket") from error
    else:
        raise FatalError(f"{path}: another process serves this socket")
    finally:
        probe.close()


def _first_fitting(folder: Path, file_names: list[str]) -> Path:
    for name in file_names:
        if len(str(folder / name).encode()) <= MAX_PATH_BYTES:
            return folder / name
    raise InputError(
        f"socket {folder / file_names[-1]}: {len(str(folder / file_names[-1]).encode())} bytes, "
        f"expected at most {MAX_PATH_BYTES}"
    )


def _digest(text: str, size: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
