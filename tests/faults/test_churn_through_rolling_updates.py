"""Rolling updates while pods come and go all the time."""

import re

import pytest

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tests.faults import invariants
from tests.support.churn import Churn
from tests.support.node_plugin_process import cluster_with
from tests.support.tally import EFFORT, PODS_CHURNED, Tally
from tests.support.waiting import eventually

pytestmark = pytest.mark.sweep

UPDATES = max(2, round(8 * EFFORT))
PODS = max(8, round(32 * min(1, EFFORT)))
REQUEST = {"tflops": "30", "vram": "8Gi"}
FAILURE = re.compile(
    ".*(?:claim_prepare_failed|claim_unprepare_failed|call_failed|part_failed|Traceback).*"
)


def registered(cluster: SimulatedCluster) -> int:
    return sum(plugin.is_connected for plugin in cluster.kubelet.registered.get(names.DRIVER, ()))


def start(cluster: SimulatedCluster, pod_uid: str) -> None:
    before = registered(cluster)
    cluster.start_plugin(pod_uid)
    cluster.until("registered", lambda: registered(cluster) == before + 1)


def await_more(churn: Churn) -> None:
    """Wait until another PODS pods have run and ended."""
    ended = churn.ended
    assert eventually(lambda: churn.ended >= ended + PODS), churn.reason()


def test_pods_do_not_notice_rolling_updates(tally: Tally) -> None:
    with cluster_with("8xA100-SXM4-80GB") as cluster:
        start(cluster, "pod-0")
        cluster.until("published", lambda: bool(cluster.slices()))
        churn = Churn(cluster, pods=PODS, asks=REQUEST)
        for update in range(UPDATES):
            await_more(churn)
            start(cluster, f"pod-{update + 1}")
            await_more(churn)
            assert cluster.stop_plugin(f"pod-{update}") == 0
            cluster.until("alone", lambda: registered(cluster) == 1)
        await_more(churn)
        churn.stop()

        assert churn.reason() == []
        logs = [cluster.log_file_of(f"pod-{number}").read_text() for number in range(UPDATES + 1)]
        assert [line for text in logs for line in FAILURE.findall(text)] == []
        cluster.until("released", lambda: not cluster.claims())
        limits = cluster.folder / "tensor-fusion" / "claims"
        assert (cluster.spec_files(), [*limits.iterdir()]) == ([], [])
        assert invariants.records(cluster.kubelet_root / "plugins" / names.DRIVER) == {}
        tally[PODS_CHURNED] += churn.ended
