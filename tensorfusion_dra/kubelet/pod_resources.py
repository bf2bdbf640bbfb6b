"""Client of the kubelet's pod resources API, v1: what the node's containers hold.

Source: k8s.io/kubelet/pkg/apis/podresources/v1. The kubelet holds no lock of it while it calls
NodePrepareResources, so it may be asked during a prepare.
"""

from pathlib import Path
from typing import Final

import grpc

from tensorfusion_dra.core.devices.other_users import Allocations
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet.pb import podresources_v1_pb2 as pb

LIST: Final = "/v1.PodResourcesLister/List"
_WAIT_SECONDS: Final = 2.0
_MOST_BYTES: Final = 16 * 2**20


def allocations(socket: Path) -> Allocations:
    """Return the devices of all containers; none if there is no such socket.

    Raises:
        RetryableError: The kubelet does not answer.
    """
    if not socket.exists():
        return Allocations()
    options = [("grpc.max_receive_message_length", _MOST_BYTES)]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            LIST,
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        try:
            answer: pb.ListPodResourcesResponse = call(
                pb.ListPodResourcesRequest(), timeout=_WAIT_SECONDS
            )
        except grpc.RpcError as error:
            raise RetryableError(
                f"{socket}: found {error.details()}, expected the kubelet's list of devices"
            ) from error
    containers = [each for pod in answer.pod_resources for each in pod.containers]
    return Allocations(
        plugins=frozenset(
            (each.resource_name, device)
            for container in containers
            for each in container.devices
            for device in each.device_ids
        ),
        claims=frozenset(
            (each.driver_name, each.pool_name, each.device_name)
            for container in containers
            for claim in container.dynamic_resources
            for each in claim.claim_resources
        ),
    )
