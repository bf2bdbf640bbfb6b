"""Garbage collector of a process that serves, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.plugin_process import Process, spawn_command
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tests.app.node_plugin.test_node_plugin_process import cluster_with
from tests.support.waiting import PATIENCE_SECONDS, eventually

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

REPORTING = """
import atexit, gc, json, pathlib, runpy, sys
file = pathlib.Path(sys.argv.pop(1))
atexit.register(
    lambda: file.write_text(json.dumps([gc.isenabled(), gc.get_freeze_count()]))
)
runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)
"""


def test_collector_pauses_during_the_start_and_then_skips_what_was_loaded() -> None:
    command = [sys.executable, "-c", COLLECTOR]
    printed = subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=True)

    before, starting, started = json.loads(printed.stdout)

    (is_collecting, frozen_by_python) = before  # none, except in Python 3.12
    assert is_collecting
    assert starting == [False, frozen_by_python]
    assert started[0] is True
    assert started[1] > frozen_by_python + 1000


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
