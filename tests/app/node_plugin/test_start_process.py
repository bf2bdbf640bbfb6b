"""The start of processes that serve: its order, what it may load, its memory, which parts run."""

import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.app.node_plugin.process import NodePlugin
from tensorfusion_dra.app.shared import process_memory
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.plugin_process import Process, WaitError, spawn_command
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tensorfusion_dra.core import names
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.support import import_witness
from tests.support.node_plugin_process import cluster_with
from tests.support.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin has not been started."""
    with cluster_with() as running:
        yield running


def start_in(monkeypatch: pytest.MonkeyPatch, *wrapper: str) -> None:
    """Start each process by a Python program that gets the verb and its flags."""

    def spawn(command: Sequence[str], log_file: Path) -> Process:
        verb = command.index("tensorfusion_dra") + 1
        return spawn_command([sys.executable, *wrapper, *command[verb:]], log_file)

    monkeypatch.setattr(plugin_process, "spawn", spawn)


@pytest.mark.process
def test_both_sockets_serve_before_the_kubernetes_client_is_loaded(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = cluster.folder / "imports"
    start_in(monkeypatch, import_witness.__file__, str(record), str(cluster.kubelet_root))
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


# malloc_info() writes an element <heap nr="..."> for each arena.
STARTING = """
import ctypes, gc, json, sys, tempfile, threading
from tensorfusion_dra.app.shared import process_memory
if sys.argv[1] == "prepared":
    process_memory.prepare_start()
everyone = threading.Barrier(9)
def allocate():
    kept = [bytes(4096) for _ in range(100)]
    everyone.wait()
    everyone.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
everyone.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as report:
    stream = ctypes.c_void_p(libc.fopen(report.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(json.dumps([report.read().decode().count("<heap nr="), gc.isenabled()]))
everyone.wait()
"""

REPORTING = """
import atexit, gc, json, pathlib, runpy, sys
file = pathlib.Path(sys.argv.pop(1)) / f"{sys.argv[1]}.report"
atexit.register(
    lambda: file.write_text(json.dumps([gc.isenabled(), gc.get_freeze_count()]))
)
runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc")
def test_start_pauses_the_collector_and_lets_threads_share_arenas() -> None:
    (usual, is_collecting), (prepared, is_collecting_then) = (
        json.loads(subprocess.check_output([sys.executable, "-c", STARTING, how]))
        for how in ("as usual", "prepared")
    )

    assert (usual > process_memory.ARENAS, is_collecting) == (True, True)
    assert (prepared, is_collecting_then) == (process_memory.ARENAS, False)


@pytest.mark.process
def test_processes_collect_garbage_once_they_serve(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_in(monkeypatch, "-c", REPORTING, str(tmp_path))
    cluster.start_plugin()
    cluster.until("published", lambda: bool(cluster.slices()))
    assert cluster.stop_plugin() == 0
    with ApiServer(tensor_fusion=True) as server:
        webhook = SimulatedWebhook(tmp_path, server.kubeconfig(tmp_path / "kubeconfig"))
        assert eventually(webhook.is_ready)
        assert webhook.process.stop() == 0

    for verb in ("node-plugin", "webhook"):
        is_collecting, frozen = json.loads((tmp_path / f"{verb}.report").read_text())
        assert is_collecting
        assert frozen > 1000
