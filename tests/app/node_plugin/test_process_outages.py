"""The real node-plugin process during failures of the API server, the network or the kubelet."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_simulator.api.faults import HalfOpen, Refuse
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.app.node_plugin.test_node_plugin_process import (
    as_the_kubelet,
    cluster_with,
    log_lines,
    register,
    run_pod,
    start,
    stop,
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin has published; each test uses a pod of its own."""
    with cluster_with() as running:
        start(running)
        yield running


def is_connected(cluster: SimulatedCluster) -> bool:
    found = cluster.kubelet.registered.get(names.DRIVER, ())
    return any(plugin.is_connected for plugin in found)


def test_a_new_claim_fails_in_time_during_an_outage_and_delays_no_other(
    cluster: SimulatedCluster,
) -> None:
    known = run_pod(cluster, "c")
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

        answer = kubelet.unprepare(known)
        was_waiting = not pending.done()
        answers = pending.result()

    assert answer.claims[known.uid].error == ""
    assert was_waiting
    assert "no answer within the time" in answers.claims[new.uid].error
    cluster.server.faults.clear()


def test_without_an_api_server_the_process_starts_and_rebuilds_specs_and_unprepares(
    cluster: SimulatedCluster,
) -> None:
    ref = run_pod(cluster, "d")
    stop(cluster)
    before = {path: path.read_bytes() for path in cluster.spec_files()}
    for path in before:
        path.unlink()
    cluster.server.stop()
    register(cluster)

    with as_the_kubelet(cluster) as kubelet:
        rebuilt = {path: path.read_bytes() for path in cluster.spec_files()}
        gone = kubelet.unprepare(ref)

    cluster.server.start()
    assert rebuilt == before != {}
    assert gone.claims[ref.uid].error == ""
    assert len(cluster.spec_files()) == len(before) - 1


def test_a_missing_right_is_logged_once_and_the_process_keeps_running(
    cluster: SimulatedCluster,
) -> None:
    stop(cluster)
    for verb in ("list", "watch"):
        cluster.server.faults.add(verb, "resourceslices", Refuse(403, "no right to list slices"))
    started = cluster.log_file.stat().st_size
    register(cluster)
    cluster.until("logged", lambda: bool(log_lines(cluster, "publish_forbidden")))
    cluster.until("logged", lambda: bool(log_lines(cluster, "watch_forbidden")))
    cluster.server.requests.reset()
    cluster.until("connected", lambda: is_connected(cluster))

    with as_the_kubelet(cluster) as kubelet:
        kubelet.unprepare(ClaimRef(namespace="default", name="none", uid="uid-of-none"))
    logged = cluster.log_file.read_bytes()[started:].decode()

    assert logged.count("no right to list slices") == 2
    assert cluster.server.requests.count("list", "resourceslices") <= 3
    cluster.server.faults.clear()


def test_a_refused_registration_is_logged_and_retried() -> None:
    with cluster_with() as cluster:
        plugins = cluster.kubelet._plugins
        endpoint = str(cluster.kubelet_root / "plugins" / names.DRIVER / "dra.sock")
        plugins.register(names.DRIVER, endpoint, ["v1.DRAPlugin"])  # its earlier instance

        cluster.start_plugin()
        cluster.until("logged", lambda: bool(log_lines(cluster, "registration_refused")))
        plugins.deregister(names.DRIVER, endpoint)

        cluster.until("registered", lambda: bool(log_lines(cluster, "registered")))
        assert "already registered" in log_lines(cluster, "registration_refused")[0]["error"]
