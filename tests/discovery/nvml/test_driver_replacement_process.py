"""The real node-plugin process lets go of the NVIDIA driver while it is replaced."""

from functools import partial
from pathlib import Path

import pytest

from dra_simulator.rest import NODES
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.app.node_plugin.health_cluster import devices, phases, taints
from tests.app.node_plugin.test_node_plugin_process import SHARE, log_lines, start
from tests.discovery.nvml.nvml_machine import card, provide_driver
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
        self.control = driver.file.with_suffix(".nvidiactl")
        self.sign = cluster.folder / "tensor-fusion" / "driver-replacement"
        provide_driver(cluster.folder, cards=2)  # no runtime would make containers of it

    def label(self, state: str) -> None:
        stored = self.cluster.client.get(NODES, "node-01")
        self.cluster.client.patch(NODES, stored, {"metadata": {"labels": {STATE: state}}})

    def holds_driver(self) -> bool:
        files = Path(f"/proc/{self.cluster.plugin().pid}/fd").iterdir()
        return any(file.exists() and file.readlink() == self.control for file in files)

    def until_awaited(self, text: str) -> None:
        """Wait until the log says that this keeps the cards from being read."""
        lines = partial(log_lines, self.cluster, "gpus_awaited")
        self.cluster.until(text, lambda: any(text in line["error"] for line in lines()))

    def prepared(self, pod: str) -> ClaimRef:
        """Create a pod with a share; return its claim, which is prepared."""
        self.cluster.submit(pod, SHARE)
        self.cluster.until("prepared", lambda: bool(self.cluster.spec_files()))
        metadata = (self.cluster.claim_of(self.cluster.pod(pod)) or {})["metadata"]
        return ClaimRef(namespace="default", name=metadata["name"], uid=metadata["uid"])


def test_a_driver_is_replaced_under_running_pods(driver: Driver, library: Path) -> None:
    with node(driver, library, "--enforcer", "none", "--observe-use", "true") as cluster:
        upgrade = Upgrade(cluster, driver)
        claim = upgrade.prepared("a")
        cluster.until("watched", lambda: driver.opened() == {0, 1} and upgrade.holds_driver())

        upgrade.label("wait-for-jobs-required")
        upgrade.label("pod-deletion-required")

        cluster.until("tainted", lambda: len(taints(cluster)) == 2)
        for taint in taints(cluster).values():
            assert (taint["effect"], taint["value"]) == ("NoExecute", "driver-replacement")
        assert set(phases(cluster).values()) == {"Unknown"}
        cluster.until("let go", lambda: not upgrade.holds_driver())
        upgrade.until_awaited(f"keep the driver in use: {claim}")
        with PluginClient(
            cluster.kubelet_root / "plugins/tensor-fusion.ai.dra-driver/dra.sock"
        ) as kubelet:
            error = kubelet.prepare(claim).claims[claim.uid].error
        assert "the NVIDIA driver is being replaced" in error
        cluster.delete("a")  # as kube-controller-manager does because of the taint
        cluster.until("unprepared", lambda: not cluster.spec_files())
        upgrade.until_awaited("no claim uses it")

        upgrade.control.unlink()
        cluster.stop_plugin()
        start(cluster)
        upgrade.until_awaited("pod-deletion-required")
        assert not upgrade.control.exists()

        driver.answers(card(0), card(1), init=DRIVER_NOT_LOADED)
        upgrade.label("validation-required")
        upgrade.until_awaited("DRIVER_NOT_LOADED")
        assert (len(taints(cluster)), upgrade.sign.exists()) == (2, True)
        driver.answers(card(0), card(1), driver="575.51.03")
        cluster.until("back", lambda: not taints(cluster))

        for device in devices(cluster).values():
            assert device["attributes"]["driver_version"]["version"] == "575.51.3"
        assert not upgrade.sign.exists()
        upgrade.prepared("b")


def test_without_release_driver_the_node_is_not_watched(driver: Driver, library: Path) -> None:
    with node(driver, library, "--release-driver", "false") as cluster:
        sent = {(each.verb, each.resource) for each in cluster.server.requests.asked(USER_AGENT)}

        assert ("watch", "resourceslices") in sent
        assert ("watch", "nodes") not in sent
