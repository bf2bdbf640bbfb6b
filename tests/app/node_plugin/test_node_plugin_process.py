"""The real node-plugin process in a simulated cluster, over sockets and HTTP."""

import json
from collections.abc import Iterator

import pytest

from dra_simulator.rest import SLICES
from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.kubelet.pb import podresources_v1_pb2 as pb
from tests.support.node_plugin_process import (
    cluster_with,
    log_lines,
    run_pod,
    start,
    stop,
    writes_until_repaired,
)
from tests.support.pod_resources import kubelet

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin has registered and published."""
    with cluster_with() as running:
        running.plugin_flags.append("--device-metadata=true")
        start(running)
        yield running


def test_the_plugin_registers_its_driver_name_and_service(cluster: SimulatedCluster) -> None:
    assert [each.service for each in cluster.kubelet.registered[names.DRIVER]] == ["v1.DRAPlugin"]
    assert log_lines(cluster, "serving")[-1]["version"] == version.current()
    cluster.until("health", lambda: len(cluster.kubelet.health) == 2)
    assert {health.status for health in cluster.kubelet.health.values()} == {"HEALTHY"}


def test_a_pods_share_is_in_its_environment_until_its_end(cluster: SimulatedCluster) -> None:
    run_pod(cluster, "a")

    container = cluster.container_of("a")

    assert container is not None
    assert any(mount.container_path.startswith(names.METADATA_ROOT) for mount in container.mounts)
    expected = {
        "TF_CUDA_SM_PERCENT_LIMIT": "33",
        **dict.fromkeys(("TF_GPU_MEMORY_LIMIT", "TF_CUDA_MEMORY_LIMIT"), "16384"),
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert container.env.items() >= expected.items()
    ((uuid, limit),) = json.loads(container.env["TENSOR_FUSION_CUDA_MEM_LIMIT"]).items()
    assert (uuid[:4], limit) == ("GPU-", 16 * 2**30)
    assert len(cluster.spec_files()) == 1
    cluster.delete("a")
    cluster.until("unprepared", lambda: not cluster.spec_files() and not cluster.claims())
    assert len(log_lines(cluster, "claim_unprepared")) == 1


def test_a_restart_keeps_claims_and_slices_removes_sockets_and_writes_nothing(
    cluster: SimulatedCluster,
) -> None:
    run_pod(cluster, "c")
    (spec,) = cluster.spec_files()
    content, before = spec.read_bytes(), cluster.slices()

    assert stop(cluster) == 0
    assert [path for path in cluster.folder.rglob("*") if path.is_socket()] == []
    spec.unlink()  # as a reboot would
    cluster.server.requests.reset()
    start(cluster)
    cluster.until("watching", lambda: cluster.server.requests.count("watch") > 0)

    assert [item["metadata"]["name"] for item in before] == ["tensor-fusion-resource-slice-node-01"]
    assert cluster.slices() == before
    assert writes_until_repaired(cluster) == 1
    assert spec.read_bytes() == content


def users(cluster: SimulatedCluster) -> list[str]:
    """Return who else gives away each of the driver's cards, as its taint says it."""
    return [
        device["taints"][0]["value"] if "taints" in device else ""
        for item in cluster.slices()
        if item["spec"]["driver"] == names.DRIVER
        for device in item["spec"]["devices"]
    ]


def test_cards_of_a_device_plugin_and_of_another_dra_driver_are_tainted(
    cluster: SimulatedCluster,
) -> None:
    (stored,) = cluster.slices()
    first, second = (device["attributes"]["uuid"]["string"] for device in stored["spec"]["devices"])
    socket = cluster.kubelet_root / "pod-resources" / "kubelet.sock"
    socket.parent.mkdir()
    other = {"name": "gpu-0", "attributes": {"uuid": {"string": second}}}
    spec = {**stored["spec"], "driver": "gpu.nvidia.com", "devices": [other]}
    offered = pb.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=[first])
    with kubelet(socket, pb.ListPodResourcesResponse(), [offered]):
        # Its event has the node plugin read everything again.
        cluster.client.create(SLICES, {"metadata": {"name": "other"}, "spec": spec})
        cluster.until(
            "tainted", lambda: users(cluster) == ["nvidia-device-plugin", "gpu.nvidia.com"]
        )
