"""The kubelet's calls to a plugin's sockets, for tests."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.kubelet.pb import dra_health_v1_pb2 as health_pb
from tensorfusion_dra.kubelet.pb import dra_v1_pb2 as dra_pb
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as registration_pb
from tests.support.waiting import PATIENCE_SECONDS

DRA_V1 = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
DRA_V1BETA1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"


class PluginClient(AbstractContextManager["PluginClient"]):
    """gRPC client of one socket, with a connection of its own."""

    def __init__(self, socket: Path) -> None:
        # With shared subchannels, a second client of a path would use the first one's connection.
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=options)

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def plugin_info(self) -> registration_pb.PluginInfo:
        answer: registration_pb.PluginInfo = self._unary(
            "pluginregistration.Registration/GetInfo",
            registration_pb.InfoRequest(),
            registration_pb.PluginInfo,
        )
        return answer

    def notify(self, *, registered: bool, error: str = "") -> None:
        self._unary(
            "pluginregistration.Registration/NotifyRegistrationStatus",
            registration_pb.RegistrationStatus(plugin_registered=registered, error=error),
            registration_pb.RegistrationStatusResponse,
        )

    def prepare(
        self,
        *refs: ClaimRef,
        service: str = DRA_V1,
        answer: Any = dra_pb.NodePrepareResourcesResponse,
        seconds: float = PATIENCE_SECONDS,
    ) -> Any:
        return self._unary(
            f"{service}/NodePrepareResources",
            dra_pb.NodePrepareResourcesRequest(claims=[_claim(ref) for ref in refs]),
            answer,
            seconds,
        )

    def unprepare(
        self, *refs: ClaimRef, service: str = DRA_V1
    ) -> dra_pb.NodeUnprepareResourcesResponse:
        answer: dra_pb.NodeUnprepareResourcesResponse = self._unary(
            f"{service}/NodeUnprepareResources",
            dra_pb.NodeUnprepareResourcesRequest(claims=[_claim(ref) for ref in refs]),
            dra_pb.NodeUnprepareResourcesResponse,
        )
        return answer

    def watch_health(
        self, service: str = "v1.DRAResourceHealth"
    ) -> Iterator[health_pb.NodeWatchResourcesResponse]:
        call = self._channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=health_pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb.NodeWatchResourcesResponse.FromString,
        )
        yield from call(health_pb.NodeWatchResourcesRequest(), timeout=PATIENCE_SECONDS)

    def _unary(
        self, method: str, request: Any, answer: Any, seconds: float = PATIENCE_SECONDS
    ) -> Any:
        call = self._channel.unary_unary(
            f"/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=seconds, wait_for_ready=True)


def _claim(ref: ClaimRef) -> dra_pb.Claim:
    return dra_pb.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)
