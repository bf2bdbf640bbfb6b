"""Two node-plugin processes on one node: an update that no pod notices."""

from collections.abc import Iterator

import pytest

from tensorfusion_dra.app.simulated_cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tests.app.test_node_plugin_process import cluster_with, log_lines

SHARE = {"tflops": "50", "vram": "8Gi"}


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    """A cluster whose node plugin of pod `old` has registered and published."""
    with cluster_with() as running:
        start(running, "old")
        running.until("published", lambda: bool(running.slices()), seconds=15)
        yield running


def start(cluster: SimulatedCluster, pod_uid: str) -> None:
    before = registered(cluster)
    cluster.start_plugin(pod_uid)
    cluster.until("registered", lambda: registered(cluster) == before + 1, seconds=15)


def registered(cluster: SimulatedCluster) -> int:
    """How many instances the kubelet knows and is connected to."""
    return sum(plugin.is_connected for plugin in cluster.kubelet.registered.get(names.DRIVER, ()))


def run_pod(cluster: SimulatedCluster, name: str) -> None:
    cluster.submit(name, SHARE)
    cluster.until(f"{name} runs", lambda: cluster.container_of(name) is not None, seconds=15)


def end_pod(cluster: SimulatedCluster, name: str) -> None:
    specs = len(cluster.spec_files())
    cluster.delete(name)
    cluster.until(f"{name} ends", lambda: len(cluster.spec_files()) == specs - 1, seconds=15)


def test_what_the_old_instance_prepared_the_new_one_unprepares(cluster: SimulatedCluster) -> None:
    run_pod(cluster, "a")
    start(cluster, "new")

    run_pod(cluster, "b")
    end_pod(cluster, "a")

    assert len(log_lines(cluster, "claim_prepared", "old")) == 1
    assert log_lines(cluster, "claim_unprepared", "old") == []
    assert len(log_lines(cluster, "claim_prepared", "new")) == 1
    assert len(log_lines(cluster, "claim_unprepared", "new")) == 1


def test_the_old_instance_goes_on_when_the_new_one_is_withdrawn(cluster: SimulatedCluster) -> None:
    start(cluster, "new")
    run_pod(cluster, "a")

    cluster.stop_plugin("new")
    cluster.until("withdrawn", lambda: registered(cluster) == 1, seconds=15)
    end_pod(cluster, "a")

    assert len(log_lines(cluster, "claim_unprepared", "old")) == 1


def test_the_old_instance_goes_on_when_the_new_one_is_killed(cluster: SimulatedCluster) -> None:
    start(cluster, "new")
    run_pod(cluster, "a")

    cluster.kill_plugin("new")
    cluster.until("lost", lambda: registered(cluster) == 1, seconds=15)
    end_pod(cluster, "a")

    assert len(log_lines(cluster, "claim_unprepared", "old")) == 1


def test_after_a_kubelet_restart_both_instances_are_back(cluster: SimulatedCluster) -> None:
    start(cluster, "new")
    run_pod(cluster, "a")

    cluster.kubelet.stop()
    cluster.start_kubelet(wipe_slices=True)
    cluster.until("both", lambda: registered(cluster) == 2, seconds=15)
    cluster.until("slices", lambda: bool(cluster.slices()), seconds=15)
    end_pod(cluster, "a")

    assert cluster.spec_files() == []
