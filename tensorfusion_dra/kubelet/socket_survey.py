"""Looks at plugin sockets as the kubelet does, without being one."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc

from tensorfusion_dra.core.doctor.sockets import PluginInfo, Socket
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as pb

GET_INFO: Final = "/pluginregistration.Registration/GetInfo"
_KUBELET_SECONDS: Final = 1.0
"""How long the kubelet waits for GetInfo."""
_CONNECT_SECONDS: Final = 1.0

_UNIX_SOCKETS: Final = Path("/proc/net/unix")
_LISTENING: Final = "01"
_CONNECTED: Final = "03"


def connections(table: Path = _UNIX_SOCKETS) -> Mapping[str, int]:
    """How many are connected to each served socket of this network namespace, by path.

    A socket that another network namespace serves is not in it. Empty if the table cannot be read.
    """
    try:
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in lines:
        # Num RefCount Protocol Flags Type St Inode Path
        columns = line.split(maxsplit=7)
        if len(columns) < 8:
            continue
        state, path = columns[5], columns[7]
        if state == _LISTENING:
            found.setdefault(path, 0)
        elif state == _CONNECTED:
            found[path] = found.get(path, 0) + 1
    return found


def look(path: Path, connected: Mapping[str, int]) -> Socket:
    """A socket as it is now.

    Args:
        path: Of the socket.
        connected: From connections(), read before: looking at a socket connects to it.
    """
    seen = _connected_to(path, connected)
    probe = socket.socket(socket.AF_UNIX)
    probe.settimeout(_CONNECT_SECONDS)
    try:
        probe.connect(str(path))
    except ConnectionRefusedError:
        return Socket(path=str(path), live=False)
    except OSError as error:
        trouble = error.strerror or str(error)
        return Socket(path=str(path), live=None, trouble=trouble, connections=seen)
    finally:
        probe.close()
    return Socket(path=str(path), live=True, connections=seen)


def plugin_info(path: Path, connected: Mapping[str, int]) -> PluginInfo:
    """What a registration socket answers, and the socket that it sends the kubelet to.

    Args:
        path: Of the registration socket.
        connected: From connections(), read before.
    """
    with grpc.insecure_channel(f"unix:{path}") as channel:
        ask = channel.unary_unary(
            GET_INFO,
            request_serializer=pb.InfoRequest.SerializeToString,
            response_deserializer=pb.PluginInfo.FromString,
        )
        try:
            answer = ask(pb.InfoRequest(), timeout=_KUBELET_SECONDS)
        except grpc.RpcError as error:
            return PluginInfo(socket=str(path), trouble=_told(error))
    # Without an endpoint the kubelet calls the registration socket itself.
    endpoint = Path(answer.endpoint or path)
    return PluginInfo(
        socket=str(path),
        kind=answer.type,
        name=answer.name,
        versions=tuple(answer.supported_versions),
        endpoint_path=str(endpoint),
        endpoint=look(endpoint, connected) if endpoint.is_socket() else None,
    )


def _connected_to(path: Path, connected: Mapping[str, int]) -> int | None:
    """How many are connected; None if the table does not tell."""
    if str(path) in connected:
        return connected[str(path)]
    # The table keeps the name under which a socket was bound, and ours get theirs afterwards. Of
    # two instances it does not tell which is which.
    found = [
        count for bound, count in connected.items() if sockets.may_be_bound_as(path, Path(bound))
    ]
    return sum(found) if found else None


def _told(error: grpc.RpcError) -> str:
    # What a call raises is a grpc.Call as well, which the types do not say.
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if callable(code) and callable(details):
        return f"{code().name}: {details()}"
    return str(error)
