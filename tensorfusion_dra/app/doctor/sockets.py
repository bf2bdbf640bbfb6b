"""Checks of the plugin's sockets, by the means that the kubelet has."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem, warning
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.state import unix_sockets

_PROBE_SECONDS: Final = 5.0
_LONGEST_ANSWER: Final = 4096
_LOOK_FOR_REGISTRATION: Final = (
    "check the kubelet's log for the plugin's registration: journalctl -u kubelet | grep "
    + names.DRIVER
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """State of a socket.

    Attributes:
        is_ours: It is of this driver, by its name.
        live: True if a process serves it; None if this process may not connect to it.
    """

    path: str
    is_ours: bool = True
    live: bool | None = True


def serving(context: Context) -> Iterator[Finding]:
    """Check which sockets in the registration folder are served."""
    folder = context.settings.registry_folder
    try:
        os.scandir(folder).close()  # rglob() raises no error for a folder that it may not read
        files = sorted(path for path in folder.rglob("*") if path.is_socket())
    except OSError as error:
        raise RetryableError(f"{folder}: {error.strerror or error}") from error
    found = [
        Socket(
            path=str(path),
            is_ours=sockets.is_our_registration(path.name),
            live=not unix_sockets.trouble(str(path)) if os.access(path, os.W_OK) else None,
        )
        for path in files
    ]
    yield from registrations(found)


def registrations(found: Sequence[Socket]) -> Iterator[Finding]:
    """Judge the sockets in the registration folder."""
    ours = [socket for socket in found if socket.is_ours]
    live = [socket for socket in ours if socket.live]
    if not live:
        yield problem(
            "registration socket",
            f"{len(ours)} of this driver, none of them served",
            expected=f"one that is served: {names.DRIVER}-reg.sock",
            cure="start the node plugin on this node; if it runs, its log gives the reason why it "
            "does not serve",
        )
    elif len(live) > 1:
        yield note(
            "registration socket",
            f"{len(live)} served: {', '.join(socket.path for socket in live)}",
            expected="one, or two during a rolling update",
        )
    for socket in found:
        yield from _judge(socket)


def _judge(socket: Socket) -> Iterator[Finding]:
    subject = f"socket {socket.path}"
    if socket.live is None:
        yield not_checked(
            subject,
            "no permission to connect to it",
            cure="run this as root on the node",
        )
    elif socket.live:
        yield ok(subject, "served" if socket.is_ours else "served by another plugin")
    elif socket.is_ours:
        yield warning(
            subject,
            "not served: its process died without removing it",
            expected="no socket, or a served one: the kubelet keeps connecting to it",
            cure="restart the node plugin of this node; it removes what its predecessor left",
        )
    else:
        yield note(
            subject,
            "not served; it is another plugin's, and the kubelet keeps connecting to it",
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
        body = answer.read(_LONGEST_ANSWER).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        raise RetryableError(f"http://127.0.0.1:{port}/readyz: {error}") from error
    finally:
        connection.close()
    subject = "readiness, as reported by this pod's node plugin"
    if answer.status == HTTPStatus.OK:
        yield ok(subject, "the kubelet has registered it")
    else:
        yield problem(
            subject,
            body or str(answer.status),
            expected="registered with the kubelet, and the node's GPUPool known if it follows one",
            cure=gpupool.REMEDY if "GPUPool" in body else _LOOK_FOR_REGISTRATION,
        )
