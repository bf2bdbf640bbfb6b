"""The real node-plugin process after damage and a reboot, and during outages around it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_simulator.api.faults import HalfOpen, Refuse
from dra_simulator.rest import NODES, PODS, SLICES
from tensorfusion_dra.app.simulate.cluster import NAMESPACE, SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.support.node_plugin_process import (
    as_the_kubelet,
    claim_of,
    cluster_with,
    event_messages,
    log_lines,
    register,
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
    with cluster_with() as running:
        boot = running.folder / "boot_id"
        boot.write_text("first\n")
        running.plugin_flags.extend(["--boot-id-file", str(boot), "--poll-seconds", "0.5"])
        yield running


def wait_logged(cluster: SimulatedCluster, event: str) -> None:
    cluster.until(event, lambda: bool(log_lines(cluster, event)))


def run_and_stop(cluster: SimulatedCluster) -> tuple[Path, Path]:
    """Run the pod a, and stop the node plugin; return the paths of its CDI spec and record."""
    start(cluster)
    run_pod(cluster, "a")
    stop(cluster)
    (spec,) = cluster.spec_files()
    (record,) = (cluster.kubelet_root / "plugins" / names.DRIVER / "claims").iterdir()
    return spec, record


def test_a_damaged_record_affects_no_running_pod_and_is_rebuilt_with_an_event_on_the_node(
    cluster: SimulatedCluster,
) -> None:
    spec, record = run_and_stop(cluster)
    modified, whole = spec.stat().st_mtime_ns, record.read_bytes()
    record.write_bytes(b"\xa5" * 3_000)

    start(cluster)
    cluster.until("event", lambda: bool(event_messages(cluster, "ClaimRecordDamaged")))
    cluster.until("rebuilt", lambda: record.read_bytes() == whole)

    assert record.stem in event_messages(cluster, "ClaimRecordDamaged")[0]
    assert spec.stat().st_mtime_ns == modified
    run_pod(cluster, "b")
    cluster.delete("a")
    cluster.until("unprepared", lambda: not spec.exists())


def test_records_of_a_newer_release_stop_the_start(cluster: SimulatedCluster) -> None:
    _, record = run_and_stop(cluster)
    set_format(record, 7)
    before = record.read_bytes()

    cluster.start_plugin()
    # Not with until(), which fails if it finds that the process has ended.
    assert eventually(lambda: bool(log_lines(cluster, "start_failed")))

    (line,) = log_lines(cluster, "start_failed")
    assert "found format 7, expected at most 1" in line["error"]
    assert cluster.stop_plugin() == 1
    assert record.read_bytes() == before


def test_after_a_reboot_specs_are_written_again_and_logged(cluster: SimulatedCluster) -> None:
    spec, _ = run_and_stop(cluster)
    content = spec.read_bytes()
    spec.unlink()
    (cluster.folder / "boot_id").write_text("second\n")

    start(cluster)
    cluster.until("back", spec.exists)

    assert spec.read_bytes() == content
    assert log_lines(cluster, "recovered")[-1]["rebooted"] == 1
    assert len(log_lines(cluster, "claims_refreshed")) == 1


def test_an_api_server_from_a_backup_gives_no_card_out_twice(cluster: SimulatedCluster) -> None:
    start(cluster)
    cluster.submit("forgotten", {})
    cluster.submit("other", {})
    cluster.until("both run", lambda: all(map(cluster.container_of, ("forgotten", "other"))))
    forgotten = claim_of(cluster, "forgotten")
    # The backup is older than the pod and the slices.
    stop(cluster)
    cluster.kubelet.stop()
    cluster.client.delete(PODS, "forgotten", NAMESPACE, grace_seconds=0)
    cluster.until("forgotten", lambda: len(cluster.claims()) == 1)
    for item in cluster.slices():
        cluster.client.delete(SLICES, item["metadata"]["name"])

    cluster.start_plugin()
    cluster.until("published", lambda: bool(cluster.slices()))
    cluster.submit("new", {})
    cluster.until("bound", lambda: bool(cluster.pod("new")["spec"].get("nodeName")))
    with as_the_kubelet(cluster) as kubelet:
        new = claim_of(cluster, "new")
        refused = kubelet.prepare(new).claims[new.uid].error
    cluster.start_kubelet()
    cluster.until("new runs", lambda: cluster.container_of("new") is not None)

    assert str(forgotten) in refused
    assert len(cluster.spec_files()) == 2


def test_a_renamed_node_publishes_its_cards_and_forgets_the_claims_of_before(
    cluster: SimulatedCluster,
) -> None:
    run_and_stop(cluster)
    cluster.client.delete(PODS, "a", NAMESPACE, grace_seconds=0)
    cluster.client.delete(NODES, "node-01")
    for item in cluster.slices():  # as their owner is gone
        cluster.client.delete(SLICES, item["metadata"]["name"])
    cluster.kubelet.stop()
    cluster.node_name = "node-02"
    cluster.start_kubelet()

    cluster.plugin_flags.extend(["--gone-seconds", "0.1"])
    start(cluster)
    run_pod(cluster, "b")
    cluster.until("a is forgotten", lambda: len(cluster.spec_files()) == 1)

    (item,) = cluster.slices()
    spec = item["spec"]
    assert (spec["nodeName"], spec["pool"]["name"]) == ("node-02", "default/node-02")
    assert cluster.pod("b")["spec"]["nodeName"] == "node-02"


def test_a_deleted_claim_is_released_without_a_call_of_the_kubelet(
    cluster: SimulatedCluster,
) -> None:
    cluster.plugin_flags.extend(["--gone-seconds", "0.1"])
    start(cluster)
    run_pod(cluster, "a")
    cluster.kubelet.stop()

    cluster.client.delete(PODS, "a", NAMESPACE, grace_seconds=0)
    cluster.until("freed", lambda: not cluster.claims() and not cluster.spec_files())

    wait_logged(cluster, "claim_released")
    (line,) = log_lines(cluster, "claim_released")
    assert "found none at the API server" in line["error"]


def test_a_new_claim_fails_in_time_during_an_outage_and_delays_no_other(
    cluster: SimulatedCluster,
) -> None:
    start(cluster)
    known = run_pod(cluster, "a")
    outage = cluster.server.faults.add("get", "resourceclaims", HalfOpen())
    new = ClaimRef(namespace="default", name="new", uid="11111111-0000-4000-8000-000000000000")
    with (
        as_the_kubelet(cluster) as waiting,
        as_the_kubelet(cluster) as kubelet,
        ThreadPoolExecutor(1) as other,
    ):
        # The call may take an hour, so that the driver gives up first.
        pending = other.submit(waiting.prepare, new, seconds=3600)
        cluster.until("read", lambda: outage.hits > 0)

        assert kubelet.unprepare(known).claims[known.uid].error == ""
        assert not pending.done()
        assert "no answer within the time" in pending.result().claims[new.uid].error


def test_without_an_api_server_the_process_starts_and_rebuilds_specs_and_unprepares(
    cluster: SimulatedCluster,
) -> None:
    spec, record = run_and_stop(cluster)
    content = spec.read_bytes()
    spec.unlink()
    cluster.server.stop()
    register(cluster)

    with as_the_kubelet(cluster) as kubelet:
        assert spec.read_bytes() == content
        ref = ClaimRef(namespace="default", name="a", uid=record.stem)
        assert kubelet.unprepare(ref).claims[ref.uid].error == ""

    assert not spec.exists()
    cluster.server.start()


def test_a_missing_right_is_logged_once_and_the_process_keeps_running(
    cluster: SimulatedCluster,
) -> None:
    for verb in ("list", "watch"):
        cluster.server.faults.add(verb, "resourceslices", Refuse(403, "no right to list slices"))
    register(cluster)
    for event in ("publish_forbidden", "watch_forbidden", "registered"):
        wait_logged(cluster, event)
    cluster.server.requests.reset()

    with as_the_kubelet(cluster) as kubelet:
        kubelet.unprepare(ClaimRef(namespace="default", name="none", uid="uid-of-none"))

    assert cluster.log_file.read_text().count("no right to list slices") == 2
    assert cluster.server.requests.count("list", "resourceslices") <= 3


def test_a_refused_registration_is_logged_and_retried(cluster: SimulatedCluster) -> None:
    plugins = cluster.kubelet._plugins
    endpoint = str(cluster.kubelet_root / "plugins" / names.DRIVER / "dra.sock")
    plugins.register(names.DRIVER, endpoint, ["v1.DRAPlugin"])  # its earlier instance

    cluster.start_plugin()
    wait_logged(cluster, "registration_refused")
    plugins.deregister(names.DRIVER, endpoint)

    wait_logged(cluster, "registered")
    assert "already registered" in log_lines(cluster, "registration_refused")[0]["error"]
