"""The kubelet's lists of devices (PodResources API) on a socket."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import grpc

from tensorfusion_dra.kubelet import pod_resources
from tensorfusion_dra.kubelet.pb import podresources_v1_pb2 as pb
from tests.support.grpc_sockets import serving, unary


def kubelet(
    socket: Path,
    held: pb.ListPodResourcesResponse | None,
    offered: Sequence[pb.ContainerDevices] = (),
) -> AbstractContextManager[None]:
    """Serve the API on a socket; with None refuse each call, as the kubelet does above its rate."""

    def listed(_: object, context: grpc.ServicerContext) -> pb.ListPodResourcesResponse:
        if held is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return held

    allocatable = pb.AllocatableResourcesResponse(devices=offered)
    methods = {
        "List": unary(listed, pb.ListPodResourcesRequest),
        "GetAllocatableResources": unary(lambda *_: allocatable, pb.AllocatableResourcesRequest),
    }
    return serving(socket, {pod_resources.SERVICE: methods})
