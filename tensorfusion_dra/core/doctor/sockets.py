"""Whether the kubelet finds this driver by its sockets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, could_not_look, note, ok, problem, warning

_RESTART: Final = "restart the node plugin of this node; it removes what its predecessor left"
_LOOK_FOR_REGISTRATION: Final = (
    "look for plugin registration in the kubelet's log: journalctl -u kubelet | grep "
    + names.DRIVER
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """A socket as it was found.

    Attributes:
        live: Somebody serves it; None if that cannot be told.
        trouble: Why not; "" if it can.
        connections: How many processes are connected; None if that is not to be seen from here.
    """

    path: str
    live: bool | None = True
    trouble: str = ""
    connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """What a registration socket answers to the kubelet.

    Attributes:
        socket: Which one.
        trouble: Why it did not answer; "" if it did.
        endpoint: The socket of the DRA service; None if there is none at the path that was told.
    """

    socket: str
    trouble: str = ""
    kind: str = names.PLUGIN_TYPE
    name: str = names.DRIVER
    endpoint_path: str = ""
    versions: tuple[str, ...] = names.SUPPORTED_VERSIONS
    endpoint: Socket | None = None


def is_ours(file_name: str) -> bool:
    """Whether a registration socket is this driver's, by any of its three forms of a name."""
    by_name = file_name.startswith((f"{names.DRIVER}-", f"{names.DRIVER}."))
    by_hash = file_name.startswith("dra-") and len(file_name) == len("dra-") + 22 + len("-reg.sock")
    return file_name.endswith("-reg.sock") and (by_name or by_hash)


def registered(sockets: Sequence[Socket]) -> Iterator[Finding]:
    """What to think of the sockets in the registration folder."""
    ours = [socket for socket in sockets if is_ours(socket.path.rpartition("/")[2])]
    live = [socket for socket in ours if socket.live]
    if not live:
        yield problem(
            "registration socket",
            f"{len(ours)} of this driver, none of them served",
            expected=f"one that is served: {names.DRIVER}-reg.sock",
            cure="start the node plugin on this node; if it runs, its log tells why it does not "
            "serve",
        )
    elif len(live) > 1:
        yield note(
            "registration socket",
            f"{len(live)} served: {', '.join(socket.path for socket in live)}",
            expected="one, or two while an update is rolled out",
        )
    for socket in sockets:
        yield from _one(socket, ours=socket in ours)


def answered(status: int, said: str) -> Finding:
    """What to think of the node plugin's own word on whether the kubelet has taken it.

    Args:
        status: Of ``/readyz``, as HTTP has it.
        said: The body: what is wrong, if something is.
    """
    looked_at = "registration, as the node plugin of this pod tells it"
    if status == HTTPStatus.OK:
        return ok(looked_at, "the kubelet has registered it")
    return problem(
        looked_at,
        said.strip() or str(status),
        expected="registered with the kubelet",
        cure=_LOOK_FOR_REGISTRATION,
    )


def _one(socket: Socket, *, ours: bool) -> Iterator[Finding]:
    looked_at = f"socket {socket.path}"
    if socket.live is None:
        yield could_not_look(looked_at, socket.trouble, cure="run this as root on the node")
    elif socket.live:
        yield ok(looked_at, "served" if ours else "served by another plugin")
    elif ours:
        yield warning(
            looked_at,
            "nobody serves it: its process died without removing it",
            expected="no socket, or a served one: the kubelet keeps dialling it",
            cure=_RESTART,
        )
    else:
        yield note(
            looked_at,
            "nobody serves it; it is another plugin's, and the kubelet keeps dialling it",
        )


def told(info: PluginInfo) -> Iterator[Finding]:
    """What to think of what a registration socket answers."""
    looked_at = f"GetInfo of {info.socket}"
    if info.trouble:
        yield problem(
            looked_at,
            info.trouble,
            expected="an answer within a second, as the kubelet waits no longer",
            cure="look into the node plugin's log, and restart it",
        )
        return
    if (info.kind, info.name) != (names.PLUGIN_TYPE, names.DRIVER):
        yield problem(
            looked_at,
            f"{info.kind} {info.name}",
            expected=f"{names.PLUGIN_TYPE} {names.DRIVER}",
            cure="remove whoever else serves under this driver's file name",
        )
        return
    if not set(info.versions) & set(names.SUPPORTED_VERSIONS[:2]):
        yield problem(
            looked_at,
            f"serves {', '.join(info.versions) or 'nothing'}",
            expected=f"one of {', '.join(names.SUPPORTED_VERSIONS[:2])}",
            cure="update the node plugin",
        )
        return
    yield ok(looked_at, f"{info.name}, {', '.join(info.versions)}")
    yield from _endpoint(info)


def _endpoint(info: PluginInfo) -> Iterator[Finding]:
    looked_at = f"DRA socket {info.endpoint_path}"
    socket = info.endpoint
    if socket is None:
        yield problem(
            looked_at,
            "not there",
            expected="the socket that the kubelet is sent to, at the same path on the host as "
            "in the pod",
            cure=f"mount {info.endpoint_path.rpartition('/')[0]} at the same path, and restart "
            "the node plugin",
        )
    elif socket.live is None:
        yield could_not_look(looked_at, socket.trouble, cure="run this as root on the node")
    elif not socket.live:
        yield problem(
            looked_at, "nobody serves it", expected="served by the node plugin", cure=_RESTART
        )
    elif socket.connections == 0:
        yield problem(
            looked_at,
            "served, and nobody is connected",
            expected="the kubelet's connection, which it keeps open",
            cure=_LOOK_FOR_REGISTRATION,
        )
    else:
        seen = "who is connected is not to be seen from here"
        if socket.connections is not None:
            seen = f"{socket.connections} connected"
        yield ok(looked_at, f"served, {seen}")
