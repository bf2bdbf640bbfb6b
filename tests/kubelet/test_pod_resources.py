"""The kubelet's list of what containers hold, over a real socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tensorfusion_dra.core.devices.other_users import Allocations
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet import pod_resources
from tensorfusion_dra.kubelet.pb import podresources_v1_pb2 as pb


@contextmanager
def kubelet(socket: Path, answer: pb.ListPodResourcesResponse | None) -> Iterator[None]:
    """Serve the API on a socket; with None refuse each call, as the kubelet does above its rate."""

    def listed(_: pb.ListPodResourcesRequest, context: grpc.ServicerContext) -> object:
        if answer is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return answer

    method = grpc.unary_unary_rpc_method_handler(
        listed,
        request_deserializer=pb.ListPodResourcesRequest.FromString,
        response_serializer=pb.ListPodResourcesResponse.SerializeToString,
    )
    service, name = pod_resources.LIST.strip("/").split("/")
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {name: method}),)
        )
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()


def holding(resource: str, *devices: str) -> pb.ListPodResourcesResponse:
    """Return the answer about one container with devices of a device plugin."""
    held = pb.ContainerDevices(resource_name=resource, device_ids=devices)
    container = pb.ContainerResources(devices=[held])
    return pb.ListPodResourcesResponse(pod_resources=[pb.PodResources(containers=[container])])


def test_devices_of_plugins_and_claims_are_listed_by_their_names(tmp_path: Path) -> None:
    container = pb.ContainerResources(
        devices=[
            pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-a", "GPU-b"])
        ],
        dynamic_resources=[
            pb.DynamicResource(
                claim_resources=[
                    pb.ClaimResource(
                        driver_name="gpu.nvidia.com", pool_name="node-01", device_name="gpu-0"
                    )
                ]
            )
        ],
    )
    pods = [pb.PodResources(containers=[container]), pb.PodResources()]
    with kubelet(tmp_path / "s", pb.ListPodResourcesResponse(pod_resources=pods)):
        found = pod_resources.allocations(tmp_path / "s")

    assert found == Allocations(
        plugins=frozenset({("nvidia.com/gpu", "GPU-a"), ("nvidia.com/gpu", "GPU-b")}),
        claims=frozenset({("gpu.nvidia.com", "node-01", "gpu-0")}),
    )


def test_without_a_socket_nothing_is_known_and_a_kubelet_that_refuses_is_an_error(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "s"

    assert pod_resources.allocations(socket) == Allocations()
    with (
        kubelet(socket, None),
        pytest.raises(RetryableError, match=r"s: found rejected by rate limit, expected"),
    ):
        pod_resources.allocations(socket)
