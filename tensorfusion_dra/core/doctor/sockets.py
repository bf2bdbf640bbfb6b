"""Findings about the sockets by which the kubelet finds this driver."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem, warning

_RESTART: Final = "restart the node plugin of this node; it removes what its predecessor left"
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


def registered(sockets: Sequence[Socket]) -> Iterator[Finding]:
    """Judge the sockets in the registration folder."""
    ours = [socket for socket in sockets if socket.is_ours]
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
    for socket in sockets:
        yield from _one(socket)


def answered(status: int, body: str) -> Finding:
    """Judge the node plugin by its own readiness: registered, and not waiting for a GPUPool.

    Args:
        status: HTTP status of ``/readyz``.
        body: Body of the response: the fault, if any.
    """
    subject = "readiness, as reported by this pod's node plugin"
    if status == HTTPStatus.OK:
        return ok(subject, "the kubelet has registered it")
    found = body.strip() or str(status)
    return problem(
        subject,
        found,
        expected="registered with the kubelet, and the node's GPUPool known if it follows one",
        cure=gpupool.CURE if "GPUPool" in found else _LOOK_FOR_REGISTRATION,
    )


def _one(socket: Socket) -> Iterator[Finding]:
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
            cure=_RESTART,
        )
    else:
        yield note(
            subject,
            "not served; it is another plugin's, and the kubelet keeps connecting to it",
        )
