"""Checks of the plugin's sockets, by the means that the kubelet has."""

import os
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.core.doctor import sockets as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.sockets import Socket
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.state import unix_sockets

_PROBE_SECONDS: Final = 5.0
_LONGEST_ANSWER: Final = 4096


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
