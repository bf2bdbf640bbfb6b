"""32 pods come and go all the time while one instance after the other takes over."""

import time
from pathlib import Path

from tensorfusion_dra.app.simulated_cluster import SimulatedCluster
from tensorfusion_dra.core import names
from tests.app.test_node_plugin_process import cluster_with
from tests.faults import invariants
from tests.support.churn import Churn
from tests.support.tally import EFFORT, PODS_CHURNED, Tally

SECONDS = 30 * EFFORT
PODS = 32
ASKS = {"tflops": "30", "vram": "8Gi"}
FAILURES = ("claim_not_prepared", "claim_not_unprepared", "call_failed", "part_failed", "Traceback")


def registered(cluster: SimulatedCluster) -> int:
    return sum(plugin.is_connected for plugin in cluster.kubelet.registered.get(names.DRIVER, ()))


def start(cluster: SimulatedCluster, pod_uid: str) -> None:
    before = registered(cluster)
    cluster.start_plugin(pod_uid)
    cluster.until("registered", lambda: registered(cluster) == before + 1, seconds=20)


def failures(log_files: list[Path]) -> list[str]:
    lines = [line for file in log_files for line in file.read_text().splitlines()]
    return [line for line in lines if any(failure in line for failure in FAILURES)]


def test_no_pod_notices_any_of_the_updates(tally: Tally) -> None:
    with cluster_with("8xA100-SXM4-80GB") as cluster:
        start(cluster, "pod-0")
        cluster.until("published", lambda: bool(cluster.slices()), seconds=15)
        churn = Churn(cluster, pods=PODS, asks=ASKS)
        began = time.monotonic()
        updates = 0
        while time.monotonic() < began + SECONDS:
            time.sleep(1)
            start(cluster, f"pod-{updates + 1}")
            time.sleep(1)

            code = cluster.stop_plugin(f"pod-{updates}")

            assert code == 0
            cluster.until("alone", lambda: registered(cluster) == 1, seconds=20)
            updates += 1
        churn.stop()

        assert churn.trouble() == []
        assert failures([cluster.log_file_of(f"pod-{n}") for n in range(updates + 1)]) == []
        assert cluster.spec_files() == []
        cluster.until("released", lambda: not cluster.claims(), seconds=20)
        data_folder = cluster.kubelet_root / "plugins" / names.DRIVER
        assert invariants.records(data_folder) == {}
        assert [*(cluster.folder / "tensor-fusion" / "claims").iterdir()] == []
        assert updates >= 5
        assert churn.ended > 10 * PODS
        tally[PODS_CHURNED] += churn.ended
