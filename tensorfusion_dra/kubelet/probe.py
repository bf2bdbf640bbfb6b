"""Calls this instance's own sockets, as the kubelet would."""

from typing import Any, Final

import grpc

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet.pb import dra_v1_pb2 as dra_pb
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as registration_pb
from tensorfusion_dra.kubelet.sockets import SocketPaths

_SECONDS: Final = 2.0
"""For one call; the kubelet itself gives GetInfo one second."""


class Probe:
    """Whether both services answer; may be asked from any thread."""

    def __init__(self, paths: SocketPaths) -> None:
        self._paths: Final = paths

    def check(self) -> None:
        """Returns if the kubelet could register this instance and prepare claims with it.

        A new connection each time: one that is open would outlive its socket's name.

        Raises:
            RetryableError: A socket is not there, or its service does not answer; the text has
                the socket.
        """
        info = _call(
            self._paths.registration,
            "/pluginregistration.Registration/GetInfo",
            registration_pb.InfoRequest(),
            registration_pb.PluginInfo,
        )
        if info.name != names.DRIVER:
            raise RetryableError(
                f"{self._paths.registration}: found {info.name!r}, expected {names.DRIVER!r}"
            )
        _call(
            self._paths.dra,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra_pb.NodePrepareResourcesRequest(),
            dra_pb.NodePrepareResourcesResponse,
        )


def _call(socket: object, method: str, request: Any, answer: Any) -> Any:
    # No shared subchannels: two channels to one path would otherwise be one connection.
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return call(request, timeout=_SECONDS)
        except grpc.RpcError as error:
            raise RetryableError(f"{socket}: {error.code().name}: {error.details()}") from error
