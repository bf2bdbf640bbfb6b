"""Client of the kubelet's pod resources API, v1: devices of plugins and of containers.

Source: k8s.io/kubelet/pkg/apis/podresources/v1. The kubelet holds no lock of it while it calls
NodePrepareResources, so it may be asked during a prepare. It refuses calls above a rate that all
clients share (100 per second, bursts of 10).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import grpc

from tensorfusion_dra.core.devices.other_users import KubeletDevices
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet.pb import podresources_v1_pb2 as pb

SERVICE: Final = "v1.PodResourcesLister"
_WAIT_SECONDS: Final = 2.0
_MAX_BYTES: Final = 16 * 2**20


def devices(socket: Path) -> KubeletDevices:
    """Return the devices of all device plugins and containers; none if there is no such socket.

    Raises:
        RetryableError: The kubelet does not answer.
    """
    if not socket.exists():
        return KubeletDevices()
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        allocatable = channel.unary_unary(
            f"/{SERVICE}/GetAllocatableResources",
            request_serializer=pb.AllocatableResourcesRequest.SerializeToString,
            response_deserializer=pb.AllocatableResourcesResponse.FromString,
        )
        listing = channel.unary_unary(
            f"/{SERVICE}/List",
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        try:
            offers = allocatable(pb.AllocatableResourcesRequest(), timeout=_WAIT_SECONDS)
            pods = listing(pb.ListPodResourcesRequest(), timeout=_WAIT_SECONDS).pod_resources
        except grpc.RpcError as error:
            raise RetryableError(
                f"{socket}: found {error.details()}, expected the kubelet's list of devices"
            ) from error
    containers = [each for pod in pods for each in pod.containers]
    return KubeletDevices(
        offered=_devices(offers.devices),
        held=_devices(each for container in containers for each in container.devices),
        claims=frozenset(
            (each.driver_name, each.pool_name, each.device_name)
            for container in containers
            for claim in container.dynamic_resources
            for each in claim.claim_resources
        ),
    )


def _devices(found: Iterable[pb.ContainerDevices]) -> frozenset[tuple[str, str]]:
    return frozenset((each.resource_name, device) for each in found for device in each.device_ids)
