"""Where the two sockets of an instance lie, and under which names others know them as ours."""

import base64
import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError

MAX_PATH_BYTES: Final = 107
"""sun_path holds 108 bytes with the final NUL."""

_DIGEST_BYTES: Final = 8
_TOKEN_BYTES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPaths:
    """The sockets of this instance; the kubelet dials them under the same paths on the host."""

    registration: Path
    dra: Path


def paths(*, registry_folder: Path, data_folder: Path, pod_uid: str) -> SocketPaths:
    """The socket paths, with the pod's UID in them if there is one.

    Two instances of a rolling update then never share a path. Where the name with the UID is too
    long for a socket, shorter ones with hashes follow. Kubernetes' own helper has the same first
    two (k8s.io/dynamic-resource-allocation/kubeletplugin, 1.37); its third is one hash of driver
    and UID together, which nobody could tell from another driver's.

    Raises:
        InputError: A folder is too long for any of the names.
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
    """Where the socket of this path is bound before it gets its name; never a longer path.

    The kubelet overlooks names that begin with a dot.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    ours = f"dra-{_OURS}-" if is_our_registration(path.name) else ""
    return path.with_name(f".{ours}{token}")


def may_be_bound_as(path: Path, bound: Path) -> bool:
    """Whether the socket of this path may have been bound as the other one; see hidden()."""
    if bound.parent != path.parent or not bound.name.startswith("."):
        return False
    alike = (is_our_registration, is_our_dra)
    return any(ours(path.name) and ours(bound.name) for ours in alike)


def is_our_registration(name: str) -> bool:
    """Whether an instance of this driver, of whatever pod, gives registration sockets this name."""
    return _OUR_REGISTRATION.fullmatch(name) is not None


def is_our_dra(name: str) -> bool:
    """Whether an instance of this driver, of whatever pod, gives DRA sockets this name.

    For the driver's own folder, in which only its sockets are.
    """
    return _OUR_DRA.fullmatch(name) is not None


def _first_fitting(folder: Path, file_names: Sequence[str]) -> Path:
    for name in file_names:
        if len(str(folder / name).encode()) <= MAX_PATH_BYTES:
            return folder / name
    raise InputError(
        f"socket {folder / file_names[-1]}: {len(str(folder / file_names[-1]).encode())} bytes, "
        f"expected at most {MAX_PATH_BYTES}"
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


_OURS: Final = _digest(names.DRIVER)
_INSTANCE: Final = r"[A-Za-z0-9_-]{1,63}"
_HASHED: Final = f"[A-Za-z0-9_-]{{{len(_OURS)}}}"
_TOKEN: Final = f"[0-9a-f]{{{2 * _TOKEN_BYTES}}}"
_OUR_REGISTRATION: Final = re.compile(
    f"{re.escape(names.DRIVER)}(-{_INSTANCE})?-reg\\.sock"
    f"|dra-{re.escape(_OURS)}{_HASHED}-reg\\.sock"
    f"|\\.dra-{re.escape(_OURS)}-{_TOKEN}"
)
_OUR_DRA: Final = re.compile(f"dra(-{_INSTANCE})?\\.sock|\\.{_TOKEN}")
