"""Rolling update: two node-plugin processes on one node, without effect on pods."""

from collections.abc import Iterator

import pytest

from dra_simulator.api.faults import Delay, HalfOpen
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tests.support.node_plugin_process import (
    SHARE,
    cluster_with,
    log_lines,
    run_pod,
    slice_writes,
    start,
    writes_until_repaired,
)

pytestmark = pytest.mark.process


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin of pod `old` has registered and published."""
    with cluster_with() as running:
        start(running, "old")
        yield running


def start_new(cluster: SimulatedCluster) -> None:
    """Start a second instance; return once the kubelet is connected to both."""
    cluster.start_plugin("new")
    cluster.until("registered", lambda: registered(cluster) == 2)


def registered(cluster: SimulatedCluster) -> int:
    """Return the number of instances that the kubelet is connected to."""
    return sum(plugin.is_connected for plugin in cluster.kubelet.registered.get(names.DRIVER, ()))


def end_pod(cluster: SimulatedCluster, name: str) -> None:
    specs = len(cluster.spec_files())
    cluster.delete(name)
    cluster.until(f"{name} ends", lambda: len(cluster.spec_files()) == specs - 1)


def wait_logged(cluster: SimulatedCluster, event: str, pod_uid: str) -> None:
    """Wait until the instance has logged the event; the line follows the action."""
    cluster.until(event, lambda: len(log_lines(cluster, event, pod_uid)) == 1)


def test_the_new_instance_unprepares_claims_of_the_old_one_which_takes_over_when_it_is_killed(
    cluster: SimulatedCluster,
) -> None:
    run_pod(cluster, "a")
    start_new(cluster)

    run_pod(cluster, "b")
    end_pod(cluster, "a")

    wait_logged(cluster, "claim_prepared", "new")
    wait_logged(cluster, "claim_unprepared", "new")
    assert len(log_lines(cluster, "claim_prepared", "old")) == 1
    assert log_lines(cluster, "claim_unprepared", "old") == []

    cluster.kill_plugin("new")
    cluster.until("lost", lambda: registered(cluster) == 1)
    end_pod(cluster, "b")

    wait_logged(cluster, "claim_unprepared", "old")


def test_a_second_signal_ends_the_drain(cluster: SimulatedCluster) -> None:
    cluster.server.faults.add("get", "resourceclaims", Delay(0.05), times=1)
    hanging = cluster.server.faults.add("get", "resourceclaims", HalfOpen(), times=1)
    cluster.submit("a", SHARE)
    cluster.until("read", lambda: hanging.hits == 1)
    old = cluster.plugin("old")
    old.terminate()
    wait_logged(cluster, "stop_requested", "old")
    assert old.exit_code is None

    old.terminate()
    cluster.until("ended", lambda: old.exit_code is not None)

    assert [line["calls"] for line in log_lines(cluster, "calls_cancelled", "old")] == [1]
    assert [path for path in cluster.folder.rglob("*") if path.is_socket()] == []


def test_a_rolling_update_without_changes_writes_no_slice(cluster: SimulatedCluster) -> None:
    run_pod(cluster, "a")
    before = cluster.slices()
    cluster.server.requests.reset()

    start_new(cluster)
    cluster.until("published", lambda: bool(cluster.server.requests.count("watch")))
    cluster.stop_plugin("old")
    cluster.until("alone", lambda: registered(cluster) == 1)
    end_pod(cluster, "a")

    assert cluster.slices() == before
    assert writes_until_repaired(cluster) == 1


def test_instances_with_different_settings_do_not_overwrite_each_other(
    cluster: SimulatedCluster,
) -> None:
    cluster.plugin_flags.extend(["--qos", "critical"])
    cluster.server.requests.reset()

    start_new(cluster)
    cluster.until("new", lambda: published_qos(cluster) == {"critical"})
    wait_logged(cluster, "publishing_left_to_newer_instance", "old")
    assert slice_writes(cluster) == 1

    assert writes_until_repaired(cluster) == 2
    assert published_qos(cluster) == {"critical"}

    cluster.server.requests.reset()
    cluster.stop_plugin("new")  # as a rollback does
    cluster.until("old", lambda: published_qos(cluster) == {"medium"})

    assert slice_writes(cluster) == 1


def published_qos(cluster: SimulatedCluster) -> set[str]:
    devices = (device for item in cluster.slices() for device in item["spec"]["devices"])
    return {device["attributes"]["qos"]["string"] for device in devices}
