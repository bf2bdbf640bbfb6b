"""Events of a pod in the answer of the verb `why`."""

import pytest

from dra_simulator.rest import EVENTS, PODS
from tests.support.gpu_cluster import Cluster, request, two_cards

Capture = pytest.CaptureFixture[str]


def test_pod_that_does_not_start_on_its_node(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi"}))
    cluster.schedule()
    uid = cluster.client.get(PODS, "a", "default")["metadata"]["uid"]
    for number, (event_uid, text) in enumerate(((uid, "no driver"), ("earlier-pod", "no volume"))):
        cluster.client.create(
            EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"a.{number}", "namespace": "default"},
                "involvedObject": {
                    "kind": "Pod",
                    "name": "a",
                    "namespace": "default",
                    "uid": event_uid,
                },
                "reason": "FailedPrepareDynamicResources",
                "message": text,
                "type": "Warning",
                "source": {"component": "kubelet"},
                "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
            },
        )

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "bound")
    assert found["answer"] == (
        "default/a is scheduled on node-01 already; it waits there: FailedPrepareDynamicResources: "
        "no driver"
    )
