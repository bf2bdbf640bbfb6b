"""Checks of the plugin's sockets, by the means that the kubelet has."""

import os
from collections.abc import Iterator, Mapping
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
_MAX_ANSWER_BYTES: Final = 4096
_LOOK_FOR_REGISTRATION: Final = (
    "check the kubelet's log for the plugin's registration: journalctl -u kubelet | grep "
    + names.DRIVER
)


def serving(context: Context) -> Iterator[Finding]:
    """Check which of this driver's sockets in the registration folder are served."""
    folder = context.settings.registry_folder
    try:
        os.scandir(folder).close()  # rglob() raises no error for a folder that it may not read
        files = sorted(path for path in folder.rglob("*") if path.is_socket())
    except OSError as error:
        raise RetryableError(f"{folder}: {error.strerror or error}") from error
    yield from registrations(
        {
            str(path): not unix_sockets.trouble(str(path)) if os.access(path, os.W_OK) else None
            for path in files
            if sockets.OUR_REGISTRATION.fullmatch(path.name)
        }
    )


def registrations(found: Mapping[str, bool | None]) -> Iterator[Finding]:
    """Judge this driver's sockets in the registration folder.

    Args:
        found: By path, whether a process serves it; None if this process may not connect to it.
    """
    live = [path for path, is_live in found.items() if is_live]
    if not live:
        yield problem(
            "registration socket",
            f"{len(found)} of this driver, none of them served",
            expected=f"one that is served: {names.DRIVER}-reg.sock",
            cure="start the node plugin on this node; if it runs, its log gives the reason why it "
            "does not serve",
        )
    elif len(live) > 1:
        yield note(
            "registration socket",
            f"{len(live)} served: {', '.join(live)}",
            expected="one, or two during a rolling update",
        )
    for path, is_live in found.items():
        subject = f"socket {path}"
        if is_live is None:
            cure = "run this as root on the node"
            yield not_checked(subject, "no permission to connect to it", cure=cure)
        elif is_live:
            yield ok(subject, "served")
        else:
            yield warning(
                subject,
                "not served: its process died without removing it",
                expected="no socket, or a served one: the kubelet keeps connecting to it",
                cure="restart the node plugin of this node; it removes what its predecessor left",
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
        body = answer.read(_MAX_ANSWER_BYTES).decode(errors="replace").strip()
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
