"""Checks of the plugin's sockets, by the means that the kubelet has."""

import os
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.core.doctor import sockets as rules
from tensorfusion_dra.core.doctor.finding import Finding, ok, problem
from tensorfusion_dra.core.doctor.sockets import Socket
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.state import unix_sockets

_PROBE_SECONDS: Final = 5.0
_LONGEST_ANSWER: Final = 4096


def paths(context: Context) -> Iterator[Finding]:
    """Check that the paths of the node plugin's sockets are not too long."""
    settings = context.settings
    try:
        found = sockets.paths(
            registry_folder=settings.registry_folder,
            data_folder=settings.data_folder,
            pod_uid=settings.pod_uid,
        )
    except InputError as error:
        yield problem(
            "socket paths",
            str(error),
            expected="a kubelet root that leaves room for the names",
            cure="give the kubelet a shorter --root-dir, or bind-mount it at a shorter path and "
            "set --kubelet-root",
        )
        return
    longest = max(len(str(path).encode()) for path in (found.registration, found.dra))
    yield ok("socket paths", f"{longest} bytes at most, of {sockets.MAX_PATH_BYTES}")


def serving(context: Context) -> Iterator[Finding]:
    """Check which sockets in the registration folder are served."""
    folder = context.settings.registry_folder
    try:
        os.scandir(folder).close()  # rglob() raises no error for a folder that it may not read
        files = sorted(path for path in folder.rglob("*") if path.is_socket())
    except OSError as error:
        raise RetryableError(f"{folder}: {error.strerror or error}") from error
    yield from rules.registered([_socket(path) for path in files])


def _socket(path: Path) -> Socket:
    is_allowed = os.access(path, os.W_OK)
    return Socket(
        path=str(path),
        is_ours=sockets.is_our_registration(path.name),
        live=not unix_sockets.trouble(str(path)) if is_allowed else None,
    )


def registered(context: Context) -> Iterator[Finding]:
    """Check that the kubelet has registered the node plugin in whose pod this runs."""
    port = context.settings.health_port
    if not (context.in_pod and port):
        return
    connection = HTTPConnection("127.0.0.1", port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        yield rules.answered(answer.status, answer.read(_LONGEST_ANSWER).decode(errors="replace"))
    except (OSError, HTTPException) as error:
        raise RetryableError(f"http://127.0.0.1:{port}/readyz: {error}") from error
    finally:
        connection.close()
