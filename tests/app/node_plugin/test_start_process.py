"""The order in which a node plugin starts, and what a start may load, with the real process."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.plugin_process import Process, WaitError, spawn_command
from tensorfusion_dra.core import names
from tests.app.node_plugin.test_node_plugin_process import cluster_with
from tests.support import import_witness
from tests.support.imports import loaded


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin has not been started."""
    with cluster_with() as running:
        yield running


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

    assert {line["module"] for line in loaded} >= {"tensorfusion_dra.cluster.login"}
    for line in loaded:
        assert line["sockets"] == ["dra.sock", f"{names.DRIVER}-reg.sock"], line["module"]


def test_an_unreadable_kubeconfig_ends_the_process_and_removes_its_sockets(
    cluster: SimulatedCluster,
) -> None:
    cluster.kubeconfig.write_text("{")

    cluster.start_plugin()
    with pytest.raises(WaitError, match="the node plugin ended with 2"):
        cluster.until("ready", lambda: False)

    assert cluster.plugin().last_line().startswith("tensorfusion-dra: kubeconfig ")
    assert not list(cluster.kubelet_root.rglob("*.sock"))


def test_importing_the_node_plugin_loads_no_library_that_only_some_nodes_use() -> None:
    plugin = "import tensorfusion_dra.cli, tensorfusion_dra.app.node_plugin.process"

    assert loaded(plugin, "kubernetes", "urllib3", "pynvml", "yaml", "tomllib", "grpc") == ["grpc"]
