"""Simulations that fail or are interrupted: their errors, and what they remove."""

import argparse
import os
import re
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest

from dra_simulator.rest import CLASSES, ApiError, Client
from tensorfusion_dra.app.shared import node_settings, setting_sources
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.simulate import sequence
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.app.simulate.options import Options
from tensorfusion_dra.app.simulate.plugin_process import WaitError
from tests.support.forks import command
from tests.support.node_plugin_process import cluster_with
from tests.support.objects import device_class

FOREVER = 3600.0


@pytest.mark.process
def test_a_wait_that_times_out_shows_the_plugins_warnings() -> None:
    with cluster_with(gpus="") as cluster:
        library = cluster.folder / "libnvidia-ml.so.1"
        cluster.plugin_flags.extend(["--nvml-library", str(library), "--poll-seconds", "0.1"])
        cluster.start_plugin()
        plugin = cluster.plugin()
        cluster.until("the warning", lambda: "gpus_awaited" in "".join(plugin.problems()))

        with pytest.raises(WaitError) as caught:
            cluster.until("publication", lambda: False, seconds=0, explain=lambda: ["more"])

    more, *details = caught.value.details
    assert (caught.value.summary, more) == ("publication: not within 0 s", "more")
    warning = f"node plugin: warning gpus_awaited: .*{library}"
    assert any(re.match(warning, line) for line in details), details


@pytest.mark.process
def test_the_end_of_another_process_ends_the_wait_too() -> None:
    with cluster_with() as cluster:
        cluster.start_plugin()
        process = cluster.plugin()
        cluster.watch_process("webhook", process)
        cluster.until("start", lambda: "gpus_read" in process.log_file.read_text())
        cluster.kill_plugin()
        process.is_stopping = False

        with pytest.raises(WaitError, match=r"^pods: the webhook ended with -9"):
            cluster.until("pods", lambda: False, seconds=FOREVER)


@pytest.mark.process
def test_a_failed_simulation_prints_the_details_and_then_the_awaited_event() -> None:
    ended = command("simulate", "--tflops-oversell-ratio", "1")

    details, _, last = ended.stderr.strip().rpartition("\n")
    ending = "tensorfusion-dra: registration: the node plugin ended with 2"
    assert (ended.returncode, last) == (2, ending)
    assert "tflops-oversell-ratio: found 1" in details


def test_selectors_are_those_of_the_release(tmp_path: Path) -> None:
    wanted = device_class("cards", '["a"].includes(device.driver)')
    for release in (37, 38):
        with SimulatedCluster(tmp_path, gpus="", release=release).server as server:
            refused = pytest.raises(ApiError, match="undeclared reference to 'includes'")
            with nullcontext() if release == 38 else refused:
                Client(server.url).create(CLASSES, wanted)


def test_a_simulated_node_uses_no_path_of_this_machine_except_the_boot_id() -> None:
    with cluster_with() as cluster:
        command_line = cluster.plugin_command()
        parser = argparse.ArgumentParser()
        setting_sources.add_flags(parser, Settings)
        flags = command_line[command_line.index("node-plugin") + 1 :]
        chosen = node_settings.from_flags(parser.parse_args(flags), {})

    paths = {item.name: Path(str(getattr(chosen, item.name))) for item in fields(Settings)}
    assert [
        name
        for name, path in paths.items()
        if path.is_absolute() and not path.is_relative_to(cluster.folder)
    ] == ["boot_id_file"]


OPTIONS = Options(
    gpus="1xT4",
    pods=0,
    requests=(),
    tflops_oversell_ratio="",
    vram_expand_to_host_mem="",
    file=None,
    qos="",
    keep=False,
    verbose=False,
)


@pytest.fixture
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_signals")
def test_further_signals_do_not_stop_the_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    class Interrupted:
        """A cluster that is told to end once more while it stops."""

        def __init__(self, folder: Path, **_: object) -> None:
            self.folder = folder
            folders.append(folder)

        def stop(self) -> None:
            for each in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), each)

    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sequence, "SimulatedCluster", Interrupted)
    monkeypatch.setattr(sequence, "_run_and_print", interrupted)

    assert sequence.run(OPTIONS, form="text") == 130
    assert [folder.exists() for folder in folders] == [False]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
