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
        live: True if a process serves it; None if that is unknown.
        trouble: Reason why it is unknown; "" if it is known.
        connections: Number of connections to it; None if they are not visible from here.
    """

    path: str
    live: bool | None = True
    trouble: str = ""
    connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """A registration socket's answer to GetInfo.

    Attributes:
        socket: Path of the registration socket.
        trouble: Reason why it did not answer; "" if it did.
        endpoint: The socket of the DRA service; None if there is none at `endpoint_path`.
    """

    socket: str
    trouble: str = ""
    kind: str = names.PLUGIN_TYPE
    name: str = names.DRIVER
    endpoint_path: str = ""
    versions: tuple[str, ...] = names.SUPPORTED_VERSIONS
    endpoint: Socket | None = None


def is_ours(file_name: str) -> bool:
    """Return True if a registration socket's name has one of this driver's three forms."""
    by_name = file_name.startswith((f"{names.DRIVER}-", f"{names.DRIVER}."))
    by_hash = file_name.startswith("dra-") and len(file_name) == len("dra-") + 22 + len("-reg.sock")
    return file_name.endswith("-reg.sock") and (by_name or by_hash)


def registered(sockets: Sequence[Socket]) -> Iterator[Finding]:
    """Judge the sockets in the registration folder."""
    ours = [socket for socket in sockets if is_ours(socket.path.rpartition("/")[2])]
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
        yield from _one(socket, ours=socket in ours)


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


def _one(socket: Socket, *, ours: bool) -> Iterator[Finding]:
    subject = f"socket {socket.path}"
    if socket.live is None:
        yield not_checked(subject, socket.trouble, cure="run this as root on the node")
    elif socket.live:
        yield ok(subject, "served" if ours else "served by another plugin")
    elif ours:
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


def plugin_info(info: PluginInfo) -> Iterator[Finding]:
    """Judge a registration socket's answer to GetInfo, and the DRA socket that it names."""
    subject = f"GetInfo of {info.socket}"
    if info.trouble:
        yield problem(
            subject,
            info.trouble,
            expected="an answer within a second; the kubelet waits no longer",
            cure="check the node plugin's log, and restart it",
        )
        return
    if (info.kind, info.name) != (names.PLUGIN_TYPE, names.DRIVER):
        yield problem(
            subject,
            f"{info.kind} {info.name}",
            expected=f"{names.PLUGIN_TYPE} {names.DRIVER}",
            cure="remove the other plugin that serves under this driver's file name",
        )
        return
    if not set(info.versions) & set(names.SUPPORTED_VERSIONS[:2]):
        yield problem(
            subject,
            f"serves {', '.join(info.versions) or 'nothing'}",
            expected=f"one of {', '.join(names.SUPPORTED_VERSIONS[:2])}",
            cure="update the node plugin",
        )
        return
    yield ok(subject, f"{info.name}, {', '.join(info.versions)}")
    yield from _endpoint(info)


def _endpoint(info: PluginInfo) -> Iterator[Finding]:
    subject = f"DRA socket {info.endpoint_path}"
    socket = info.endpoint
    if socket is None:
        yield problem(
            subject,
            "not found",
            expected="the socket to which the node plugin directs the kubelet, at the same path "
            "on the host as in the pod",
            cure=f"mount {info.endpoint_path.rpartition('/')[0]} at the same path, and restart "
            "the node plugin",
        )
    elif socket.live is None:
        yield not_checked(subject, socket.trouble, cure="run this as root on the node")
    elif not socket.live:
        yield problem(subject, "not served", expected="served by the node plugin", cure=_RESTART)
    elif socket.connections == 0:
        yield problem(
            subject,
            "served, without any connection",
            expected="the kubelet's connection, which it keeps open",
            cure=_LOOK_FOR_REGISTRATION,
        )
    else:
        seen = "its connections are not visible from here"
        if socket.connections is not None:
            seen = f"{socket.connections} connected"
        yield ok(subject, f"served, {seen}")
