"""The verb `doctor` on a simulated node that is healthy or broken, and without a cluster."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_simulator.api.faults import ANY, Refuse
from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.app.doctor.checks import Check, run_checks
from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core.finding import ok
from tests.app.doctor.here import context
from tests.support.forks import command
from tests.support.node_plugin_process import cluster_with, run_pod, start

pytestmark = pytest.mark.process


@contextmanager
def node(**options: Any) -> Iterator[SimulatedCluster]:
    with cluster_with(**options) as cluster:
        start(cluster)
        yield cluster


def flags(cluster: SimulatedCluster) -> list[str]:
    """Return the node plugin's flags, for a doctor on the same node."""
    own = cluster.plugin_command()
    return own[own.index("node-plugin") + 1 :]


def report(cluster: SimulatedCluster, *more: str) -> dict[str, Any]:
    ended = command("doctor", "-o", "json", *flags(cluster), *more)
    assert ended.stderr == ""
    output: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == output["exitCode"]
    return output


def themes(output: dict[str, Any], level: str) -> set[str]:
    """Return the themes with findings of a level, except those due to a temporary folder."""
    of_the_machine = re.compile("which is a private mount|empty after a reboot")
    return {
        item["theme"]
        for item in output["findings"]
        if item["level"] == level and not of_the_machine.search(item["found"])
    }


@pytest.fixture(scope="module")
def healthy() -> Iterator[SimulatedCluster]:
    """Yield a node with a pod."""
    with node() as cluster:
        run_pod(cluster, "a")
        yield cluster


def test_a_healthy_node_has_no_problem_and_only_its_containers_are_not_checked(
    healthy: SimulatedCluster,
) -> None:
    output = report(healthy)

    assert (output["place"], output["version"]) == ("node", version.current())
    for level in ("problem", "warning"):
        assert themes(output, level) == set()
    assert themes(output, "could-not-look") == {"container runtime"}
    assert output["exitCode"] == 2
    assert {"folders", "sockets", "GPUs", "limits", "slices", "records"} <= themes(output, "ok")


def test_a_disabled_gate_is_found_by_the_dry_run_of_a_slice() -> None:
    with node(gates=DEFAULT_GATES - {"DRAConsumableCapacity"}) as cluster:
        output = report(cluster)
        ended = command("doctor", *flags(cluster))

    assert output["exitCode"] == 1
    assert [
        item["lookedAt"]
        for item in output["findings"]
        if "DRAConsumableCapacity is off" in item["found"]
    ] == ["dry run of a ResourceSlice"]
    assert themes(output, "problem") == {"kubernetes", "slices"}
    lines = ended.stdout.splitlines()
    assert lines[:2] == [f"tensorfusion-dra {version.current()}", "On node node-01"]
    assert "cure:     turn the feature gate DRAConsumableCapacity on" in ended.stdout
    assert lines[-1].startswith("2 problem")


def test_a_killed_node_plugin_is_found_by_its_dead_socket_and_nothing_changes() -> None:
    with node() as cluster:
        cluster.kill_plugin()
        before, slices = sorted(cluster.folder.rglob("*")), cluster.slices()

        output = report(cluster)

        assert (cluster.slices(), cluster.claims()) == (slices, [])
        assert sorted(cluster.folder.rglob("*")) == before
    assert themes(output, "problem") == themes(output, "warning") == {"sockets"}


def test_without_a_kubeconfig_the_node_itself_is_still_checked(tmp_path: Path) -> None:
    ended = command(
        *("doctor", "-o", "json", "--on", "node", "--simulated-gpus", "1xT4"),
        *("--kubelet-root", str(tmp_path), "--cdi-dir", str(tmp_path / "cdi")),
        *("--tensor-fusion-root", str(tmp_path / "tf"), "--static-cdi-dir", str(tmp_path / "host")),
        HOME=str(tmp_path),
    )

    output = json.loads(ended.stdout)
    assert ended.returncode == 1  # no folder of a kubelet
    assert themes(output, "could-not-look") == {"kubernetes", "sockets"}
    assert "GPUs" in themes(output, "ok")


def test_an_unreachable_api_server_is_one_problem_and_not_one_per_check(tmp_path: Path) -> None:
    with ApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    ended = command("doctor", "-o", "json", "--on", "workstation", "--kubeconfig", str(kubeconfig))

    looked_at = [item["lookedAt"] for item in json.loads(ended.stdout)["findings"]]
    assert (ended.returncode, looked_at) == (1, ["API server"])


def test_a_check_without_permission_is_reported_and_the_rest_is_checked(
    healthy: SimulatedCluster,
) -> None:
    with healthy.server.faults.during(ANY, "resourceslices", Refuse(403)):
        output = report(healthy)

    assert {"kubernetes", "slices"} <= themes(output, "could-not-look")
    assert "device class" in themes(output, "ok")


def test_a_check_that_raises_loses_only_its_own_findings(tmp_path: Path) -> None:
    def broken(_: object) -> Any:
        yield ok("first", "fine")
        raise ZeroDivisionError("by design")

    checks = [
        Check(theme="broken", run=broken),
        Check(theme="whole", run=lambda _: [ok("second", "fine")]),
    ]

    results = run_checks(checks, context(tmp_path))

    assert [(theme, finding.level.value) for theme, finding in results] == [
        ("kubernetes", "could-not-look"),
        *(("broken", "ok"), ("broken", "could-not-look")),
        ("whole", "ok"),
    ]
