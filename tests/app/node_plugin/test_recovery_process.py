"""The real node-plugin process after ledger damage, a reboot, and a missing Unprepare call."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_simulator.rest import EVENTS, PODS, Json
from tensorfusion_dra.app.simulate.cluster import NAMESPACE, SimulatedCluster
from tensorfusion_dra.core import names
from tests.app.node_plugin.test_node_plugin_process import (
    cluster_with,
    log_lines,
    run_pod,
    start,
    stop,
)
from tests.support.stores import edited
from tests.support.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin, not started yet, reconciles each second."""
    with cluster_with("1xA100-SXM4-80GB") as running:
        boot = running.folder / "boot_id"
        boot.write_text("first\n")
        running.plugin_flags.extend(["--boot-id-file", str(boot), "--recover-seconds", "1"])
        yield running


def ledger_file(cluster: SimulatedCluster) -> Path:
    return cluster.kubelet_root / "plugins" / names.DRIVER / "ledger.sqlite3"


def quarantined(cluster: SimulatedCluster) -> list[Json]:
    events = cluster.client.list(EVENTS).items
    return [event for event in events if event["reason"] == "LedgerQuarantined"]


def test_a_damaged_ledger_affects_no_pod_and_causes_an_event_on_the_node(
    cluster: SimulatedCluster,
) -> None:
    start(cluster)
    run_pod(cluster, "a")
    (spec,) = cluster.spec_files()
    content, modified = spec.read_bytes(), spec.stat().st_mtime_ns
    stop(cluster)
    ledger_file(cluster).write_bytes(b"\xa5" * 50_000)

    start(cluster)
    cluster.until("event", lambda: bool(quarantined(cluster)))

    (event,) = quarantined(cluster)
    assert event["type"] == "Warning"
    assert "claims restored from copies: 1;" in event["message"]
    assert (spec.read_bytes(), spec.stat().st_mtime_ns) == (content, modified)
    (aside,) = ledger_file(cluster).parent.glob("ledger-damaged-*.sqlite3")
    assert aside.read_bytes() == b"\xa5" * 50_000
    run_pod(cluster, "b")
    cluster.delete("a")
    cluster.until("unprepared", lambda: not spec.exists())


def test_the_ledger_of_a_newer_release_stops_the_start_with_both_versions(
    cluster: SimulatedCluster,
) -> None:
    start(cluster)
    stop(cluster)
    before = edited(ledger_file(cluster), "PRAGMA user_version = 7")

    cluster.start_plugin()
    # Not with until(), which fails if it finds that the process has ended.
    assert eventually(lambda: bool(log_lines(cluster, "start_failed")))

    (line,) = log_lines(cluster, "start_failed")
    assert "found version 7, expected at most 3" in line["error"]
    assert cluster.stop_plugin() == 1
    assert ledger_file(cluster).read_bytes() == before


def test_after_a_reboot_specs_are_written_again_and_logged(
    cluster: SimulatedCluster,
) -> None:
    start(cluster)
    run_pod(cluster, "a")
    (spec,) = cluster.spec_files()
    content = spec.read_bytes()
    stop(cluster)
    spec.unlink()
    (cluster.folder / "boot_id").write_text("second\n")

    start(cluster)
    cluster.until("back", spec.exists)

    assert spec.read_bytes() == content
    assert log_lines(cluster, "recovered")[-1]["rebooted"] == 1
    assert len(log_lines(cluster, "claims_refreshed")) == 1


def test_a_deleted_claim_is_released_without_a_call_of_the_kubelet(
    cluster: SimulatedCluster,
) -> None:
    cluster.plugin_flags.extend(["--gone-seconds", "1", "--check-seconds", "1"])
    start(cluster)
    run_pod(cluster, "a")
    assert len(cluster.spec_files()) == 1
    cluster.kubelet.stop()

    cluster.client.delete(PODS, "a", NAMESPACE, grace_seconds=0)
    cluster.until("gone", lambda: not cluster.claims())
    cluster.until("freed", lambda: not cluster.spec_files())

    cluster.until("logged", lambda: bool(log_lines(cluster, "claim_released")))
    (line,) = log_lines(cluster, "claim_released")
    assert "found none at the API server" in line["error"]
