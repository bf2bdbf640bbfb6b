"""The start of the node plugin: its order, what it may load, and which parts run."""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tensorfusion_dra.app.node_plugin.process import NodePlugin
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.plugin_process import Process, WaitError, spawn_command
from tensorfusion_dra.core import names
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.app.node_plugin.test_node_plugin_process import cluster_with
from tests.support import import_witness


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin has not been started."""
    with cluster_with() as running:
        yield running


@pytest.mark.process
def test_both_sockets_serve_before_the_kubernetes_client_is_loaded(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = cluster.folder / "imports"

    def spawn(command: Sequence[str], log_file: Path) -> Process:
        flags = command[command.index("node-plugin") :]
        witness = (import_witness.__file__, str(record), str(cluster.kubelet_root))
        return spawn_command([sys.executable, *witness, *flags], log_file)

    monkeypatch.setattr(plugin_process, "spawn", spawn)
    cluster.start_plugin()
    cluster.until("published", lambda: bool(cluster.slices()))

    loaded = [json.loads(line) for line in record.read_text().splitlines()]

    assert {line["module"] for line in loaded} >= {"kubernetes"}
    for line in loaded:
        assert line["sockets"] == ["dra.sock", f"{names.DRIVER}-reg.sock"], line["module"]


@pytest.mark.process
def test_an_unreadable_kubeconfig_ends_the_process_and_removes_its_sockets(
    cluster: SimulatedCluster,
) -> None:
    cluster.kubeconfig.write_text("{")

    cluster.start_plugin()
    with pytest.raises(WaitError, match="the node plugin ended with 2"):
        cluster.until("ready", lambda: False)

    assert cluster.plugin().last_line().startswith("tensorfusion-dra: kubeconfig ")
    assert not list(cluster.kubelet_root.rglob("*.sock"))


@pytest.mark.parametrize("sockets", ["", "device-plugins"])
def test_hypervisor_bridge_runs_if_its_sockets_are_set(tmp_path: Path, sockets: str) -> None:
    settings = Settings(
        node_name="node-01",
        kubelet_root=str(tmp_path),
        cdi_dir=str(tmp_path),
        tensor_fusion_root=str(tmp_path / "tf"),
        simulated_gpus="1xT4",
        hypervisor_sockets=sockets and str(tmp_path / sockets),
    )
    with Supervisor() as supervisor:
        NodePlugin(settings, supervisor)

        assert ("workers" in {each.name for each in threading.enumerate()}) == bool(sockets)
        assert not supervisor.stopping.is_set()
