"""Garbage collector and arenas of a process that serves, each in a process of its own."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.app.shared import process_memory
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.plugin_process import Process, spawn_command
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tests.app.node_plugin.test_node_plugin_process import cluster_with
from tests.support.waiting import PATIENCE_SECONDS, eventually

THREADS = 8

COLLECTOR = """
import gc, json
from tensorfusion_dra.app.shared import process_memory
states = [(gc.isenabled(), gc.get_freeze_count())]
process_memory.prepare_start()
states.append((gc.isenabled(), gc.get_freeze_count()))
process_memory.finish_start()
states.append((gc.isenabled(), gc.get_freeze_count()))
print(json.dumps(states))
"""

# malloc_info() writes an element <heap nr="..."> for each arena.
ARENAS = """
import ctypes, json, sys, tempfile, threading
from tensorfusion_dra.app.shared import process_memory
if sys.argv[1] == "limited":
    process_memory.prepare_start()
everyone = threading.Barrier(THREADS + 1)
def allocate():
    kept = [bytes(4096) for _ in range(100)]
    everyone.wait()
    everyone.wait()
threads = [threading.Thread(target=allocate) for _ in range(THREADS)]
for thread in threads:
    thread.start()
everyone.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as report:
    stream = ctypes.c_void_p(libc.fopen(report.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(json.dumps(report.read().decode().count("<heap nr=")))
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


def answer(code: str, *arguments: str) -> Any:
    """Run code and return the JSON that it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return json.loads(ended.stdout)


def test_collector_pauses_during_the_start_and_then_skips_what_was_loaded() -> None:
    before, starting, started = answer(COLLECTOR)

    (is_collecting, frozen_by_python) = before  # none, except in Python 3.12
    assert is_collecting
    assert starting == [False, frozen_by_python]
    assert started[0] is True
    assert started[1] > frozen_by_python + 1000


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc")
def test_threads_share_the_arenas_of_the_c_library() -> None:
    code = ARENAS.replace("THREADS", str(THREADS))

    assert answer(code, "as usual") > process_memory.ARENAS
    assert answer(code, "limited") == process_memory.ARENAS


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
