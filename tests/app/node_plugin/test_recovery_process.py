"""The real node-plugin process after damage, a reboot, and a missing Unprepare call."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_simulator.rest import PODS
from tensorfusion_dra.app.simulate.cluster import NAMESPACE, SimulatedCluster
from tensorfusion_dra.core import names
from tests.app.node_plugin.test_node_plugin_process import (
    cluster_with,
    event_messages,
    log_lines,
    run_pod,
    start,
    stop,
)
from tests.support.stores import set_format
from tests.support.waiting import eventually

pytestmark = pytest.mark.process


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin, not started yet, reconciles each second."""
    with cluster_with("1xA100-SXM4-80GB") as running:
        boot = running.folder / "boot_id"
        boot.write_text("first\n")
        running.plugin_flags.extend(["--boot-id-file", str(boot), "--poll-seconds", "0.5"])
        yield running


def record_file(cluster: SimulatedCluster) -> Path:
    (file,) = (cluster.kubelet_root / "plugins" / names.DRIVER / "claims").iterdir()
    return file


def test_a_damaged_record_affects_no_running_pod_and_is_rebuilt_with_an_event_on_the_node(
    cluster: SimulatedCluster,
) -> None:
    start(cluster)
    run_pod(cluster, "a")
    (spec,) = cluster.spec_files()
    content, modified = spec.read_bytes(), spec.stat().st_mtime_ns
    stop(cluster)
    record = record_file(cluster)
    whole = record.read_bytes()
    record.write_bytes(b"\xa5" * 3_000)

    start(cluster)
    cluster.until("event", lambda: bool(event_messages(cluster, "ClaimRecordDamaged")))
    cluster.until("rebuilt", lambda: record.read_bytes() == whole)

    (message,) = event_messages(cluster, "ClaimRecordDamaged")
    assert record.stem in message
    assert (spec.read_bytes(), spec.stat().st_mtime_ns) == (content, modified)
    run_pod(cluster, "b")
    cluster.delete("a")
    cluster.until("unprepared", lambda: not spec.exists())


def test_records_of_a_newer_release_stop_the_start(cluster: SimulatedCluster) -> None:
    start(cluster)
    run_pod(cluster, "a")
    stop(cluster)
    record = record_file(cluster)
    set_format(record, 7)
    before = record.read_bytes()

    cluster.start_plugin()
    # Not with until(), which fails if it finds that the process has ended.
    assert eventually(lambda: bool(log_lines(cluster, "start_failed")))

    (line,) = log_lines(cluster, "start_failed")
    assert "found format 7, expected at most 1" in line["error"]
    assert cluster.stop_plugin() == 1
    assert record.read_bytes() == before


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
    cluster.plugin_flags.extend(["--gone-seconds", "0.1"])
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
