"""The kubelet's lists of devices, over a real socket."""

from pathlib import Path

import pytest

from tensorfusion_dra.core.devices.other_users import KubeletDevices
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet import pod_resources
from tensorfusion_dra.kubelet.pb import podresources_v1_pb2 as pb
from tests.support.pod_resources import kubelet


def test_devices_of_plugins_and_claims_are_listed_by_their_names(tmp_path: Path) -> None:
    claim = pb.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node-01", device_name="gpu-0")
    container = pb.ContainerResources(
        devices=[
            pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-a", "GPU-b"])
        ],
        dynamic_resources=[pb.DynamicResource(claim_resources=[claim])],
    )
    pods = [pb.PodResources(containers=[container]), pb.PodResources()]
    offered = [pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-b", "GPU-c"])]

    with kubelet(tmp_path / "s", pb.ListPodResourcesResponse(pod_resources=pods), offered):
        found = pod_resources.devices(tmp_path / "s")

    assert found == KubeletDevices(
        offered=frozenset({("nvidia.com/gpu", "GPU-b"), ("nvidia.com/gpu", "GPU-c")}),
        held=frozenset({("nvidia.com/gpu", "GPU-a"), ("nvidia.com/gpu", "GPU-b")}),
        claims=frozenset({("gpu.nvidia.com", "node-01", "gpu-0")}),
    )


def test_without_a_socket_nothing_is_known_and_a_kubelet_that_refuses_is_an_error(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "s"

    assert pod_resources.devices(socket) == KubeletDevices()
    with (
        kubelet(socket, None),
        pytest.raises(RetryableError, match=r"s: found rejected by rate limit, expected"),
    ):
        pod_resources.devices(socket)
