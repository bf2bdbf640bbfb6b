"""Survey of plugin sockets: connects to them and calls GetInfo as the kubelet does."""

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
"""The kubelet's deadline for GetInfo."""
_CONNECT_SECONDS: Final = 1.0

_UNIX_SOCKETS: Final = Path("/proc/net/unix")
_LISTENING: Final = "01"
_CONNECTED: Final = "03"


def connections(table: Path = _UNIX_SOCKETS) -> Mapping[str, int]:
    """Count the connections of each served socket in this network namespace, by path.

    A socket that is served in another network namespace is missing. The result is empty if the
    table cannot be read.
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


def inspect_socket(path: Path, connected: Mapping[str, int]) -> Socket:
    """Connect to a socket and return its state.

    Args:
        path: The path of the socket.
        connected: The result of connections(), from before this call: this call adds a connection.
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
    """Return a registration socket's answer to GetInfo, with the state of the endpoint it names.

    Args:
        path: The path of the registration socket.
        connected: The result of connections(), from before this call.
    """
    with grpc.insecure_channel(f"unix:{path}") as channel:
        get_info = channel.unary_unary(
            GET_INFO,
            request_serializer=pb.InfoRequest.SerializeToString,
            response_deserializer=pb.PluginInfo.FromString,
        )
        try:
            answer = get_info(pb.InfoRequest(), timeout=_KUBELET_SECONDS)
        except grpc.RpcError as error:
            return PluginInfo(socket=str(path), trouble=_status_text(error))
    # Without an endpoint the kubelet calls the registration socket itself.
    endpoint = Path(answer.endpoint or path)
    return PluginInfo(
        socket=str(path),
        kind=answer.type,
        name=answer.name,
        versions=tuple(answer.supported_versions),
        endpoint_path=str(endpoint),
        endpoint=inspect_socket(endpoint, connected) if endpoint.is_socket() else None,
    )


def _connected_to(path: Path, connected: Mapping[str, int]) -> int | None:
    """Return the number of connections; None if the table does not show it."""
    if str(path) in connected:
        return connected[str(path)]
    # The table keeps the name under which a socket was bound, but this driver's sockets are renamed
    # afterwards. With two instances, the table does not show which socket is whose.
    found = [
        count for bound, count in connected.items() if sockets.may_be_bound_as(path, Path(bound))
    ]
    return sum(found) if found else None


def _status_text(error: grpc.RpcError) -> str:
    # The error raised by a call is also a grpc.Call, but its type does not declare that.
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if callable(code) and callable(details):
        return f"{code().name}: {details()}"
    return str(error)
