"""Garbage collector and arenas of a process that serves, each in a process of its own."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.app.shared import process_memory
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.plugin_process import Process, spawn_command
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tests.app.node_plugin.test_node_plugin_process import cluster_with
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

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
file = pathlib.Path(sys.argv.pop(1))
atexit.register(
    lambda: file.write_text(json.dumps([gc.isenabled(), gc.get_freeze_count()]))
)
runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc")
def test_start_pauses_the_collector_and_lets_threads_share_arenas() -> None:
    (usual, is_collecting), (prepared, is_collecting_then) = (
        json.loads(subprocess.check_output([sys.executable, "-c", STARTING, how]))
        for how in ("as usual", "prepared")
    )

    assert (usual > process_memory.ARENAS, is_collecting) == (True, True)
    assert (prepared, is_collecting_then) == (process_memory.ARENAS, False)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which each process that serves reports on its collector at its end."""
    file = tmp_path / "report"

    def spawn(command: Sequence[str], log_file: Path) -> Process:
        verb = command.index("tensorfusion_dra") + 1
        return spawn_command(
            [sys.executable, "-c", REPORTING, str(file), *command[verb:]], log_file
        )

    monkeypatch.setattr(plugin_process, "spawn", spawn)
    return file


def test_node_plugin_collects_garbage_once_it_serves(report: Path) -> None:
    with cluster_with() as cluster:
        cluster.start_plugin()
        cluster.until("published", lambda: bool(cluster.slices()))
        assert cluster.stop_plugin() == 0

    is_collecting, frozen = json.loads(report.read_text())

    assert is_collecting
    assert frozen > 1000


def test_webhook_collects_garbage_once_it_serves(report: Path, tmp_path: Path) -> None:
    with ApiServer(tensor_fusion=True) as server:
        webhook = SimulatedWebhook(tmp_path, server.kubeconfig(tmp_path / "kubeconfig"))
        assert eventually(webhook.is_ready)
        assert webhook.process.stop() == 0

    is_collecting, frozen = json.loads(report.read_text())

    assert is_collecting
    assert frozen > 1000
