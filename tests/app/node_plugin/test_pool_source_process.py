"""The real node-plugin process follows its GPUPool in a simulated cluster."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from dra_simulator.rest import GPUPOOLS, NODES, Json
from tensorfusion_dra import cli
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.core.devices import gpupool
from tests.support.builders.gpupools import gpupool_document
from tests.support.node_plugin_process import (
    SHARE,
    cluster_with,
    event_messages,
    log_lines,
    register,
    run_pod,
    start,
    stop,
)
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

SELECTOR = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["prod"]}]}
    ]
}


@contextmanager
def following(source: str = "object", **options: Any) -> Iterator[SimulatedCluster]:
    """Yield a cluster whose node plugin follows a GPUPool and is not started yet."""
    with cluster_with("1xA100-SXM4-80GB", **{"tensor_fusion": True, **options}) as cluster:
        flags = ["--pool-source", source, "--gpupool", "prod", "--qos", "critical"]
        cluster.plugin_flags.extend([*flags, "--tflops-oversell-ratio", "900"])
        yield cluster


def create_pool(cluster: SimulatedCluster, name: str, qos: str = "low", **spec: Any) -> None:
    document = gpupool_document(name, qosConfig={"defaultQoS": qos}, **spec)
    cluster.client.create(GPUPOOLS, document)


def published(cluster: SimulatedCluster) -> list[tuple[str, str, bool]]:
    """Return pool and QoS of each device, and whether it has virtual compute."""
    return [
        (
            item["spec"]["pool"]["name"],
            device["attributes"]["qos"]["string"],
            "virtual_tflops" in device["capacity"],
        )
        for item in cluster.slices()
        for device in item["spec"]["devices"]
    ]


def await_published(cluster: SimulatedCluster, pool: str = "prod", qos: str = "low") -> None:
    expected = [(f"{pool}/node-01", qos, False)]
    cluster.until(f"{expected}", lambda: published(cluster) == expected)


def warnings(cluster: SimulatedCluster) -> list[str]:
    return event_messages(cluster, "GPUPoolInvalid")


def test_without_the_gpupool_crd_one_warning_is_written_and_nothing_published() -> None:
    with following(tensor_fusion=False) as cluster:
        cluster.serve_pages()
        register(cluster)
        cluster.until("warned", lambda: bool(warnings(cluster)))
        requests = cluster.server.requests
        cluster.until("listed again", lambda: requests.count("list", "gpupools") >= 3)

        assert cluster.slices() == []
        assert len(warnings(cluster)) == 1
        # On a busy machine the first line may be that there is no answer yet.
        awaited = [line["error"] for line in log_lines(cluster, "gpupool_awaited")]
        missing = "gpupools: the API server has no such resource"
        assert sum(missing in error for error in awaited) == 1
        assert log_lines(cluster, "watch_retried") == []
        with pytest.raises(HTTPError, match="503") as unready:
            urlopen(f"{cluster.pages_url}readyz", timeout=PATIENCE_SECONDS)
        with unready.value as answer:
            said = answer.read().decode()
        assert re.search(f"waits for a GPUPool: .*{re.escape(gpupool.REMEDY)}", said)
        with urlopen(f"{cluster.pages_url}status.json", timeout=PATIENCE_SECONDS) as page:
            assert gpupool.REMEDY in json.load(page)["cardsMissing"]


def test_a_restart_without_the_pool_keeps_slices_and_prepared_claims() -> None:
    with following() as cluster:
        create_pool(cluster, "prod")
        register(cluster)
        await_published(cluster)
        run_pod(cluster, "a")
        before = cluster.slices()
        stop(cluster)
        cluster.client.delete(GPUPOOLS, "prod")

        register(cluster)
        cluster.until("warned", lambda: bool(warnings(cluster)))
        kept = cluster.slices()
        cluster.delete("a")

        cluster.until("unprepared", lambda: not cluster.spec_files())
        assert kept == before == cluster.slices()


def test_node_labels_select_the_pool_and_can_select_another_later() -> None:
    with following("node-labels") as cluster:
        prod: Json = {"nodeManagerConfig": {"nodeSelector": SELECTOR}}
        create_pool(cluster, "prod", "high", **prod)
        register(cluster)
        cluster.until("warned", lambda: bool(warnings(cluster)))
        assert "node-01: no GPUPool selects it" in warnings(cluster)[0]
        assert cluster.slices() == []
        node = cluster.client.get(NODES, "node-01")
        cluster.client.patch(NODES, node, {"metadata": {"labels": {"tier": "prod"}}})
        await_published(cluster, qos="high")

        create_pool(cluster, "second", **prod)
        cluster.until("warned", lambda: len(warnings(cluster)) == 2)
        assert published(cluster)[0][0] == "prod/node-01"
        cluster.client.delete(GPUPOOLS, "prod")

        await_published(cluster, pool="second")
        assert cluster.stop_plugin() == 0
        assert log_lines(cluster, "thread_left_behind") == []


@pytest.mark.usefixtures("quiet")
def test_a_mark_of_the_node_taints_its_card_also_over_restarts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with following("node-labels", release=36) as cluster:
        create_pool(cluster, "prod", nodeManagerConfig={"nodeSelector": SELECTOR})
        cluster.serve_pages()
        register(cluster)
        node = cluster.client.get(NODES, "node-01")
        cluster.client.patch(NODES, node, {"metadata": {"labels": {"tier": "prod"}}})
        await_published(cluster)
        verb = ("--kubeconfig", str(cluster.kubeconfig), "node-01/gpu-")

        assert cli.main(["cordon", *verb, "--reason", "fan"]) == 0
        with urlopen(f"{cluster.pages_url}status.json", timeout=PATIENCE_SECONDS) as page:
            (shown,) = json.load(page)["cards"][0]["taints"]
        stop(cluster)
        generation = generations(cluster)
        register(cluster)
        cluster.until("published", lambda: bool(log_lines(cluster, "gpupool_read")))
        kept = generations(cluster)
        assert cli.main(["uncordon", *verb]) == 0
        cluster.until("in service", lambda: not taints(cluster))

        key = "tensor-fusion.ai/cordoned"
        assert shown == {"key": key, "value": "fan_by_unknown", "effect": "NoSchedule"}
        assert kept == generation
    assert "out of service for new pods (fan_by_unknown)" in capsys.readouterr().out


@pytest.mark.usefixtures("quiet")
def test_a_rule_keeps_new_pods_away_and_is_on_the_page_until_the_card_is_back() -> None:
    with cluster_with("1xA100-SXM4-80GB") as cluster:
        cluster.serve_pages()
        start(cluster)
        verb = ("--kubeconfig", str(cluster.kubeconfig), "node-01/gpu-")

        def shown() -> list[str]:
            with urlopen(f"{cluster.pages_url}status.json", timeout=PATIENCE_SECONDS) as page:
                return [each["value"] for each in json.load(page)["cards"][0]["taints"]]

        assert cli.main(["cordon", *verb, "--reason", "fan"]) == 0
        cluster.until("shown", lambda: shown() == ["fan_by_unknown"])
        cluster.submit("a", SHARE)
        cluster.until("refused", lambda: bool(event_messages(cluster, "FailedScheduling")))
        assert cli.main(["uncordon", *verb]) == 0
        cluster.until("a runs", lambda: cluster.container_of("a") is not None)
        cluster.until("not shown", lambda: shown() == [])


def generations(cluster: SimulatedCluster) -> list[tuple[int, Any]]:
    """Return the generation of each slice, and the taints of its first device."""
    return [(each["spec"]["pool"]["generation"], *taints(cluster)) for each in cluster.slices()]


def taints(cluster: SimulatedCluster) -> list[Any]:
    """Return the taints of all devices."""
    return [
        taint
        for item in cluster.slices()
        for device in item["spec"]["devices"]
        for taint in device.get("taints", ())
    ]
