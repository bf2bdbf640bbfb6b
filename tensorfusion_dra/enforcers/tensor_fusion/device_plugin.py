"""Client of Tensor Fusion's hypervisor, which is a device plugin of the kubelet.

The hypervisor serves 16 sockets. A worker has an index from 1 to 128, and each socket has eight of
them: the number of device IDs in a call tells which of the eight is meant, the IDs themselves do
not matter. Calls and fields are those of the kubelet's device plugin API, v1beta1.

Source: NexusGPU/tensor-fusion, pkg/hypervisor/backend/kubernetes/deviceplugin.go.
"""

import stat
from pathlib import Path
from typing import Final

import grpc

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import SilentEnforcerError
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers.patience import HungEnforcerError
from tensorfusion_dra.enforcers.tensor_fusion import marks
from tensorfusion_dra.kubelet.pb import deviceplugin_v1beta1_pb2 as pb

ALLOCATE: Final = "/v1beta1.DevicePlugin/Allocate"
_OPTIONS: Final = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
_OPTIONS_SECONDS: Final = 1.0


def socket_name(number: int) -> str:
    """Return the file name of one of the 16 sockets."""
    return f"tensor-fusion-index-{number}.sock"


class DevicePlugin:
    """The hypervisor's sockets in the kubelet's folder of device plugins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def is_serving(self) -> bool:
        """Return True if its sockets exist; it may still not answer."""
        try:
            return stat.S_ISSOCK((self._folder / socket_name(0)).stat().st_mode)
        except OSError:
            return False

    def allocate(self, index: int, *, wait_seconds: float) -> frozenset[str]:
        """Ask the hypervisor for the cards of the worker with this index; return their UUIDs.

        The UUIDs are in lower case, without cards that the hypervisor does not know. A repeated
        call changes nothing. The hypervisor waits while it does not see the worker, or if the
        worker already runs.

        Raises:
            SilentEnforcerError: It does not serve, or hangs.
            RetryableError: It did not answer in time, or refused.
        """
        number, count = marks.socket_of(index)
        socket = self._folder / socket_name(number)
        request = pb.AllocateRequest(
            container_requests=[
                pb.ContainerAllocateRequest(
                    devices_ids=[f"{number}-{position}" for position in range(1, count + 1)]
                )
            ]
        )
        answer = _call(socket, request, index=index, wait_seconds=wait_seconds)
        if len(answer.container_responses) != 1:
            raise RetryableError(
                f"{socket}: found {len(answer.container_responses)} container responses, expected "
                f"1 for worker index {index}; check the hypervisor's release"
            )
        (container,) = answer.container_responses
        # The container's mounts are not used: a NVIDIA card's device nodes and libraries are in the
        # CDI spec already, and the hypervisor lists mounts for other vendors only.
        cards = container.envs.get(names.ENV_NVIDIA_VISIBLE_DEVICES, "")
        return frozenset(uuid.lower() for uuid in cards.split(",") if uuid)


def _call(
    socket: Path, request: pb.AllocateRequest, *, index: int, wait_seconds: float
) -> pb.AllocateResponse:
    """Send the request.

    Raises:
        SilentEnforcerError: See allocate().
        RetryableError: See allocate().
    """
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        allocate = channel.unary_unary(
            ALLOCATE,
            request_serializer=pb.AllocateRequest.SerializeToString,
            response_deserializer=pb.AllocateResponse.FromString,
        )
        try:
            answer: pb.AllocateResponse = allocate(request, timeout=max(0.1, wait_seconds))
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNAVAILABLE:
                raise SilentEnforcerError(
                    f"{socket}: found no answer, expected Tensor Fusion's hypervisor to serve there"
                ) from error
            if code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                found = f"{error.details()}, expected cards for worker index {index}"
                raise RetryableError(f"{socket}: found {found}") from error
            found = f"no answer within {wait_seconds:.0f} s for worker index {index}"
            if not _answers(channel):
                raise HungEnforcerError(
                    f"{socket}: found {found}, nor to any other call, expected Tensor Fusion's "
                    f"hypervisor to answer"
                ) from error
            raise RetryableError(
                f"{socket}: found {found}, expected the hypervisor to see the pod with this index"
            ) from error
    return answer


def _answers(channel: grpc.Channel) -> bool:
    """Return True if a call that waits for no pod is answered, even by an error."""
    options: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_OPTIONS)
    try:
        options(b"", timeout=_OPTIONS_SECONDS)
    except grpc.RpcError as error:
        return error.code() not in {
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.UNAVAILABLE,
        }
    return True
