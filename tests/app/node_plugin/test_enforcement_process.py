"""The real node-plugin process says whether limits hold: MPS, whose daemon is a socket here."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_simulator.rest import EVENTS
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.discovery.nvml.nvml_machine import answers, build, card
from tests.support.forks import command
from tests.support.node_plugin_process import (
    SHARE,
    as_the_kubelet,
    claim_of,
    cluster_with,
    condition,
    event_messages,
    log_lines,
    start,
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml") / "now")


@contextmanager
def node(
    folder: Path, library: Path, monkeypatch: pytest.MonkeyPatch, *flags: str
) -> Iterator[SimulatedCluster]:
    """Yield a cluster with a node of one real card, whose enforcer is MPS."""
    file = folder / "answers"
    file.write_text(answers(card(0)), encoding="utf-8")
    monkeypatch.setenv("STAND_IN_GPUS", str(file))
    with cluster_with() as cluster:
        cluster.plugin_flags[:] = [
            *("--nvml-library", str(library)),
            *("--health-events", "false"),
            *("--enforcer", "mps"),
            *flags,
        ]
        host = cluster.folder
        for made in ("dev", "driver/usr/lib64", "run/nvidia/mps/pipe", "run/nvidia/mps/shm"):
            (host / made).mkdir(parents=True)
        for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
            (host / "dev" / name).symlink_to("/dev/null")
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (host / "driver" / "usr" / "lib64" / name).touch()
        start(cluster)
        yield cluster


@contextmanager
def daemon(cluster: SimulatedCluster) -> Iterator[None]:
    """Listen as the MPS daemon does; its socket stays behind when it dies."""
    path = cluster.folder / "run" / "nvidia" / "mps" / "pipe" / "control"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen(128)
        yield


def events(cluster: SimulatedCluster) -> list[tuple[str, str, str]]:
    """Return type, reason and pod of the Events about limits."""
    return [
        (event["type"], event["reason"], event["involvedObject"]["name"])
        for event in cluster.client.list(EVENTS).items
        if event["reason"].startswith("Limits")
    ]


def shown(cluster: SimulatedCluster, verb: str, *more: str) -> Any:
    own = cluster.plugin_command()
    ended = command(verb, *more, *own[own.index("node-plugin") + 1 :])
    return json.loads(ended.stdout) if "json" in more else ended.stdout


def test_dead_daemon_is_in_status_event_log_inspect_and_doctor(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path, library, monkeypatch) as cluster:
        with daemon(cluster):
            cluster.submit("a", SHARE)
            hidden, dead = ("Unknown", "ClientsNotVisible"), ("False", "DaemonSilent")
            cluster.until("hidden", lambda: condition(cluster, "a", "LimitsEnforced") == hidden)
        cluster.until("dead", lambda: condition(cluster, "a", "LimitsEnforced") == dead)
        cluster.until("event", lambda: events(cluster) == [("Warning", "LimitsNotEnforced", "a")])

        (line,) = log_lines(cluster, "limits_not_enforced")
        (share,) = shown(cluster, "inspect", "-o", "json")["shares"]
        table = shown(cluster, "inspect")
        findings = shown(cluster, "doctor", "-o", "json")["findings"]

        assert (line["reason"], share["enforcement"]["state"]) == ("DaemonSilent", "NotEnforced")
        assert "NotEnforced (DaemonSilent)" in table
        assert "ended process" in table
        levels = {each["lookedAt"]: each["level"] for each in findings if each["theme"] == "limits"}
        assert levels["life of enforcer mps"] == "problem"
        assert "ok" not in levels.values()


def enforcement(cluster: SimulatedCluster) -> list[tuple[str, bool, bool]]:
    """Return the enforcer of each published device, and whether it enforces compute and memory."""
    found = [
        device["attributes"] for each in cluster.slices() for device in each["spec"]["devices"]
    ]
    return [
        (of["enforcer"]["string"], of["enforcesCompute"]["bool"], of["enforcesMemory"]["bool"])
        for of in found
    ]


def test_bare_node_lets_parts_of_cards_wait_until_it_has_an_enforcer(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = tmp_path / "libvgpu.so.1"
    flags = ("--enforcer", "auto", "--hami-core-library", str(limiter))
    with node(tmp_path, library, monkeypatch, *flags) as cluster:
        cluster.until("published", lambda: enforcement(cluster) == [("none", False, False)])
        cluster.submit("a", SHARE)
        cluster.until("refused", lambda: bool(log_lines(cluster, "claim_prepare_failed")))
        (life,) = (
            each
            for each in shown(cluster, "doctor", "-o", "json")["findings"]
            if each["lookedAt"] == "enforcer auto"
        )
        cluster.until("event", lambda: bool(event_messages(cluster, "EnforcerMissing")))

        limiter.write_bytes(b"\x7fELF...")
        ref = claim_of(cluster, "a")
        with as_the_kubelet(cluster) as kubelet:
            assert kubelet.prepare(ref).claims[ref.uid].error == ""
        cluster.until("again", lambda: enforcement(cluster) == [("hami-core", True, True)])

        assert life["level"] == "problem"
        (message,) = event_messages(cluster, "EnforcerMissing")
        error = log_lines(cluster, "claim_prepare_failed")[0]["error"]
        for text in (error, life["cure"], message):
            for name in ("tensor-fusion", "hami-core", "mps", "settings.enforcer=none"):
                assert name in text
        shares = shown(cluster, "inspect", "-o", "json")["shares"]
        assert [share["enforcer"] for share in shares] == ["hami-core"]
