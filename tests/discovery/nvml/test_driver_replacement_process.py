"""The real node-plugin process lets go of the NVIDIA driver while it is replaced."""

from pathlib import Path

import pytest

from dra_simulator.rest import NODES
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.app.node_plugin.test_health_process import devices, phases, taints
from tests.app.node_plugin.test_node_plugin_process import SHARE, log_lines, start
from tests.discovery.nvml.nvml_machine import card
from tests.discovery.nvml.test_nvml_health_process import Driver, driver, node
from tests.support.kubelet import PluginClient

pytestmark = pytest.mark.process

__all__ = ["driver"]

STATE = "nvidia.com/gpu-driver-upgrade-state"
DRIVER_NOT_LOADED = "!9"


class Upgrade:
    """A node during an upgrade of its driver."""

    def __init__(self, cluster: SimulatedCluster, driver: Driver) -> None:
        self.cluster = cluster
        self.driver = driver
        self.control = driver.file.with_suffix(".nvidiactl")
        self.sign = cluster.folder / "tensor-fusion" / "driver-replacement"

    def label(self, state: str) -> None:
        stored = self.cluster.client.get(NODES, "node-01")
        self.cluster.client.patch(NODES, stored, {"metadata": {"labels": {STATE: state}}})

    def holds_driver(self) -> bool:
        files = Path(f"/proc/{self.cluster.plugin().pid}/fd").iterdir()
        return any(file.exists() and file.readlink() == self.control for file in files)

    def awaits(self, text: str) -> bool:
        return any(text in line["error"] for line in log_lines(self.cluster, "gpus_awaited"))

    def versions(self) -> set[str]:
        return {
            device["attributes"]["driver_version"]["version"]
            for device in devices(self.cluster).values()
        }


def prepared(cluster: SimulatedCluster, pod: str) -> ClaimRef:
    """Create a pod with a share; return its claim, which is prepared."""
    cluster.submit(pod, SHARE)
    cluster.until("prepared", lambda: bool(cluster.spec_files()))
    metadata = (cluster.claim_of(cluster.pod(pod)) or {})["metadata"]
    return ClaimRef(namespace="default", name=metadata["name"], uid=metadata["uid"])


def provide_driver_files(cluster_folder: Path) -> None:
    """Create what a claim needs of a driver; no runtime would make containers of it."""
    for file in ("driver/usr/lib64/libcuda.so.1", "driver/usr/lib64/libnvidia-ml.so.1"):
        path = cluster_folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (cluster_folder / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (cluster_folder / "dev" / name).symlink_to("/dev/null")


def test_a_driver_is_replaced_under_running_pods(driver: Driver, library: Path) -> None:
    with node(driver, library, "--enforcer", "none", "--observe-use", "true") as cluster:
        provide_driver_files(cluster.folder)
        upgrade = Upgrade(cluster, driver)
        claim = prepared(cluster, "a")
        cluster.until("watched", lambda: driver.opened() == {0, 1} and upgrade.holds_driver())

        upgrade.label("wait-for-jobs-required")
        upgrade.label("pod-deletion-required")

        cluster.until("tainted", lambda: len(taints(cluster)) == 2)
        effects = {(taint["effect"], taint["value"]) for taint in taints(cluster).values()}
        assert effects == {("NoExecute", "driver-replacement")}
        assert set(phases(cluster).values()) == {"Unknown"}
        cluster.until("let go", lambda: not upgrade.holds_driver())
        cluster.until("blocked", lambda: upgrade.awaits(f"keep the driver in use: {claim}"))
        with PluginClient(
            cluster.kubelet_root / "plugins/tensor-fusion.ai.dra-driver/dra.sock"
        ) as kubelet:
            error = kubelet.prepare(claim).claims[claim.uid].error
        assert "the NVIDIA driver is being replaced" in error
        cluster.delete("a")  # as kube-controller-manager does because of the taint
        cluster.until("unprepared", lambda: not cluster.spec_files())
        cluster.until("free", lambda: upgrade.awaits("no claim uses it"))

        upgrade.control.unlink()
        cluster.stop_plugin()
        start(cluster)
        cluster.until("read again", lambda: upgrade.awaits("pod-deletion-required"))
        assert not upgrade.control.exists()
        assert len(taints(cluster)) == 2

        driver.answers(card(0), card(1), init=DRIVER_NOT_LOADED)
        upgrade.label("validation-required")
        cluster.until("loading", lambda: upgrade.awaits("DRIVER_NOT_LOADED"))
        assert len(taints(cluster)) == 2
        assert upgrade.sign.exists()
        driver.answers(card(0), card(1), driver="575.51.03")
        cluster.until("back", lambda: not taints(cluster))

        assert upgrade.versions() == {"575.51.3"}
        assert not upgrade.sign.exists()
        prepared(cluster, "b")


def test_without_release_driver_the_node_is_not_watched(driver: Driver, library: Path) -> None:
    with node(driver, library, "--release-driver", "false") as cluster:
        sent = {(each.verb, each.resource) for each in cluster.server.requests.asked(USER_AGENT)}

        assert ("watch", "resourceslices") in sent
        assert ("watch", "nodes") not in sent
