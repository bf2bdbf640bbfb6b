"""Reader of the live signs of all enforcers; implements ports.EvidenceReader."""

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.core.claims.evidence import (
    Daemon,
    Evidence,
    EvidencePaths,
    FileEvidence,
    NodeEvidence,
    NodeEvidencePaths,
    SharedMemory,
)
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers import hami_cache
from tensorfusion_dra.enforcers.hypervisor import shared_memory
from tensorfusion_dra.enforcers.nvidia.client import MemoryLimits
from tensorfusion_dra.state import unix_sockets

_ELF: Final = b"\x7fELF"
_HEALTHZ: Final = "/healthz"
_WAIT_SECONDS: Final = 1.0


class EvidenceReader:
    """Reader of the evidence on one node."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        """Read nothing yet.

        Args:
            now: Returns the wall clock's time in seconds since 1970, as heartbeats have it.
        """
        self._now = now

    def of_claim(self, paths: EvidencePaths) -> Evidence:
        memory = _memory(paths) if paths.shared_memory else None
        daemon = _daemon(paths.socket)
        by_card: Mapping[str, tuple[int, int] | str] = {}
        if daemon is not None and paths.limited_pod:
            try:
                by_card = MemoryLimits(daemon.path).get(paths.limited_pod, paths.gpu_uuids)
            except RetryableError as error:
                daemon = replace(daemon, trouble=str(error))
        return Evidence(
            # After the reading of the heartbeat, so that it is not in the future.
            read_at=self._now(),
            files=tuple(map(_file, paths.files)),
            shared_memory=memory,
            caches={request: hami_cache.read(path) for request, path in paths.caches.items()},
            daemon=daemon,
            memory=by_card,
        )

    def of_node(self, paths: NodeEvidencePaths) -> NodeEvidence:
        hypervisor, asked = "", []
        for sign, trouble in _hypervisor(paths):
            if not trouble:
                hypervisor = sign
                break
            asked.append(f"{sign}: {trouble}")
        daemon = _daemon(paths.socket)
        if daemon is not None and paths.enforcer == Nvidia.name:
            trouble, hints = MemoryLimits(daemon.path).check()
            daemon = replace(daemon, trouble=trouble, hints=hints)
        return NodeEvidence(
            read_at=self._now(),
            files=tuple(map(_file, paths.files)),
            hypervisor=hypervisor,
            asked=tuple(asked),
            daemon=daemon,
        )


def _hypervisor(paths: NodeEvidencePaths) -> Iterator[tuple[str, str]]:
    """Yield each sign of the hypervisor's life, and what speaks against it; cheap ones first.

    The heartbeats of pods are none: each pod can write its own.
    """
    if paths.sockets:
        pattern = Path(paths.sockets)
        found = min(pattern.parent.glob(pattern.name), default=pattern)
        trouble = unix_sockets.trouble(str(found))
        yield f"device plugin {found}{'' if trouble else ' answers'}", trouble
    if paths.http:
        host, port = paths.http
        trouble = _http_trouble(host, port)
        yield f"http://{host}:{port}{_HEALTHZ}{'' if trouble else ' answers'}", trouble


def _memory(paths: EvidencePaths) -> SharedMemory:
    memory = shared_memory.read(paths.shared_memory)
    if not paths.registered_folder:
        return memory
    noted, trouble = shared_memory.noted(paths.registered_folder)
    present = shared_memory.folder_identity(str(Path(paths.shared_memory).parent))
    return replace(memory, is_replaced=noted not in {"", present}, overruled=trouble)


def _daemon(path: str) -> Daemon | None:
    return Daemon(path=path, trouble=unix_sockets.trouble(path)) if path else None


def _file(path: str) -> FileEvidence:
    return FileEvidence(path=path, trouble=_trouble(Path(path)))


def _trouble(path: Path) -> str:
    """Return what is wrong with a file that a limiter needs; "" if nothing is."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return "found something else, expected a file"
        if ".so" not in path.name or path.name.endswith(".preload"):
            return "" if found.st_size else "found an empty file"
        with path.open("rb") as file:
            beginning = os.read(file.fileno(), len(_ELF))
    except FileNotFoundError:
        return "not found"
    except OSError as error:
        return error.strerror or str(error)
    return "" if beginning == _ELF else "found no shared library"


def _http_trouble(host: str, port: int) -> str:
    """Return why the hypervisor's HTTP server does not call itself healthy; "" if it does.

    Prepares wait for the answer if the settings require an enforcer, so the whole question is
    bounded: one wait to connect, one for the first bytes, which have the status. http.client has no
    such bound. It reads all headers, and its timeout starts again with each piece: a server that
    sends a byte now and then would hold up a prepare for as long as it likes.
    """
    try:
        with socket.create_connection((host, port), timeout=_WAIT_SECONDS) as client:
            client.sendall(f"GET {_HEALTHZ} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            first = client.recv(64).partition(b"\r\n")[0]
    except TimeoutError:
        return f"no answer within {_WAIT_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    if first.startswith(b"HTTP/") and b" 200 " in first + b" ":
        return ""
    return f"found {first[:40].decode('ascii', errors='replace').strip()!r}, expected 200"
