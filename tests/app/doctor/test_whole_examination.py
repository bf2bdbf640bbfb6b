"""The doctor on a simulated node that is healthy or broken, and without a cluster."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.doctor.command import CHECKS
from tensorfusion_dra.app.doctor.runner import Check, run_checks
from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.doctor.finding import ok
from tensorfusion_dra.simulator.api.faults import ANY, Refuse
from tensorfusion_dra.simulator.api.gates import DEFAULT_GATES
from tests.app.doctor.here import context
from tests.app.test_command import command


@contextmanager
def node(**options: Any) -> Iterator[SimulatedCluster]:
    with tempfile.TemporaryDirectory(prefix="tfd-") as folder:
        cluster = SimulatedCluster(Path(folder), gpus="2xA100-SXM4-80GB", **options)
        cluster.start()
        try:
            cluster.start_plugin()
            cluster.until("registered", lambda: bool(cluster.kubelet.registered))
            cluster.until("published", lambda: bool(cluster.slices()))
            yield cluster
        finally:
            cluster.stop()


def flags(cluster: SimulatedCluster) -> list[str]:
    """The node plugin's own, for the doctor beside it."""
    own = cluster.plugin_command()
    return own[own.index("node-plugin") + 1 :]


def report(cluster: SimulatedCluster, *more: str) -> dict[str, Any]:
    ended = command("doctor", "-o", "json", *flags(cluster), *more)
    assert ended.stderr == ""
    told: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == told["exitCode"]
    return told


def at(told: dict[str, Any], level: str) -> set[str]:
    """Return the themes with a finding of this level, but for what temporary folders lie on."""
    of_the_machine = ("which is a private mount", "empty after a reboot")
    found = [
        item
        for item in told["findings"]
        if not any(words in item["found"] for words in of_the_machine)
    ]
    return {item["theme"] for item in found if item["level"] == level}


def test_a_healthy_node_has_no_problem_anywhere() -> None:
    with node() as cluster:
        cluster.submit("a", {"tflops": "100", "vram": "16Gi"})
        cluster.until("running", lambda: cluster.container_of("a") is not None)

        told = report(cluster)

    assert (told["place"], told["version"]) == ("node", version.current())
    assert at(told, "problem") == at(told, "warning") == set()
    # The simulated API server authorises nobody, so nobody can ask it about rights.
    assert at(told, "could-not-look") == {"rights"}
    assert {"folders", "sockets", "GPUs", "limits", "slices", "records"} <= at(told, "ok")


def test_a_gate_that_is_off_is_found_by_slice_and_claim() -> None:
    with node(gates=DEFAULT_GATES - {"DRAConsumableCapacity"}) as cluster:
        told = report(cluster)

    dropped = [item for item in told["findings"] if "DRAConsumableCapacity is off" in item["found"]]
    assert told["exitCode"] == 1
    assert [item["lookedAt"] for item in dropped] == [
        "dry run of a ResourceSlice",
        "dry run of a ResourceClaim",
    ]
    assert at(told, "problem") == {"kubernetes", "slices"}


def test_a_node_plugin_that_was_killed_is_found_by_its_socket() -> None:
    with node() as cluster:
        cluster.kill_plugin()

        told = report(cluster)

    assert at(told, "problem") == {"sockets"}
    assert at(told, "warning") == {"sockets"}


def test_looking_changes_nothing() -> None:
    with node() as cluster:
        before = sorted(cluster.folder.rglob("*"))
        slices = cluster.slices()
        cluster.server.requests.reset()

        report(cluster)

        assert cluster.slices() == slices
        assert cluster.claims() == []
        assert sorted(cluster.folder.rglob("*")) == before


def test_without_a_kubeconfig_the_node_itself_is_still_looked_at(tmp_path: Path) -> None:
    ended = command(
        *("doctor", "-o", "json", "--on", "node", "--simulated-gpus", "1xT4"),
        *("--kubelet-root", str(tmp_path), "--cdi-dir", str(tmp_path / "cdi")),
        *("--tensor-fusion-root", str(tmp_path / "tf"), "--host-root", str(tmp_path / "host")),
        HOME=str(tmp_path),
    )

    told = json.loads(ended.stdout)
    assert ended.returncode == 1  # no folder of a kubelet
    assert at(told, "could-not-look") == {"kubernetes", "sockets"}
    assert "GPUs" in at(told, "ok")


def test_an_api_server_that_does_not_answer_is_one_problem_and_not_one_a_check(
    tmp_path: Path,
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with node() as cluster:
        kubeconfig.write_text((cluster.folder / "kubeconfig").read_text())
    ended = command("doctor", "-o", "json", "--on", "workstation", "--kubeconfig", str(kubeconfig))

    told = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert [item["lookedAt"] for item in told["findings"]] == ["API server"]


def test_for_a_person_every_trouble_has_its_cure() -> None:
    with node(gates=DEFAULT_GATES - {"DRAConsumableCapacity"}) as cluster:
        ended = command("doctor", *flags(cluster))

    assert ended.returncode == 1
    first = [f"tensorfusion-dra {version.current()}", "On node node-01"]
    assert ended.stdout.splitlines()[:2] == first
    assert "cure:     turn the feature gate DRAConsumableCapacity on" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("3 problem")


def test_what_may_not_be_read_is_said_and_the_rest_is_looked_at() -> None:
    with node() as cluster:
        cluster.server.faults.add(ANY, "resourceslices", Refuse(403))

        told = report(cluster)

    assert {"kubernetes", "slices", "GPUs"} <= at(told, "could-not-look")
    assert "device class" in at(told, "ok")


def test_a_check_that_breaks_costs_only_its_own_findings(tmp_path: Path) -> None:
    def broken(_: object) -> Any:
        yield ok("first", "fine")
        raise ZeroDivisionError("by design")

    checks = [
        Check(theme="broken", run=broken),
        Check(theme="whole", run=lambda _: [ok("second", "fine")]),
    ]

    results = list(run_checks(checks, context(tmp_path)))

    told = {result.theme: [f.level.value for f in result.findings] for result in results}
    assert told == {
        "kubernetes": ["could-not-look"],
        "broken": ["ok", "could-not-look"],
        "whole": ["ok"],
    }


def test_a_kubeconfig_that_cannot_be_used_is_a_finding(tmp_path: Path) -> None:
    here = context(tmp_path, api=Api(tmp_path / "none"))

    (result,) = run_checks([check for check in CHECKS if check.needs_api], here)

    assert [finding.level.value for finding in result.findings] == ["problem"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--service-account", "a"], "service-account: found 'a'"),
        (["--runtime-config", "/nowhere"], "runtime-config: /nowhere"),
        (["--on", "moon"], "moon"),
        (["--enforcer", "none"], "enforcer: found 'none'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    ended = command("doctor", *arguments)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
