"""The verb `why` on pods that have a node: what is wrong with them there."""

import pytest

from dra_simulator.rest import CLAIMS, EVENTS, PODS
from tests.support.gpu_cluster import Cluster, request

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("cards")


def test_pod_in_terminating(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_pod("a", request({"vram": "20Gi"}), metadata={"finalizers": ["example.com/job"]})
    cluster.schedule()
    cluster.client.delete(PODS, "a", "default")

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (1, "bound")
    assert "scheduled on node-01 already" in found["answer"]
    assert "But pod: is being deleted, with the deadline 20" in found["answer"]
    assert found["helps"][0].endswith("or for the kubelet of node-01: example.com/job")


@pytest.mark.parametrize(
    ("condition", "status", "expected"),
    [
        ("LimitsEnforced", "True", ""),
        ("LimitsEnforced", "Unknown", ""),
        ("LimitsEnforced", "False", "its limits are not enforced on {card}: NoSign: no limiter"),
        ("Ready", "False", "it is not ready on {card}: NoSign: no limiter"),
    ],
)
def test_pod_whose_limits_are_not_enforced(
    cluster: Cluster, capsys: Capture, condition: str, status: str, expected: str
) -> None:
    cluster.add_pod("a", request({"vram": "20Gi"}))
    cluster.schedule()
    claim = cluster.client.get(CLAIMS, "a", "default")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    entry["conditions"] = [
        {
            "type": condition,
            "status": status,
            "reason": "NoSign",
            "message": "no limiter",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    cluster.client.patch(CLAIMS, claim, {"status": {"devices": [entry]}}, subresource="status")

    code, found = cluster.why(capsys, "a")

    card = result["device"]
    said = f" But ResourceClaim a: {expected.format(card=card)}." if expected else ""
    assert code == 0
    assert found["answer"].endswith(f"checks the node.{said}")
    assert [finding["level"] for finding in found["findings"]] == ["warning"] * bool(expected)


def test_pod_that_does_not_start_on_its_node(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_pod("a", request({"vram": "20Gi"}))
    cluster.schedule()
    uid = cluster.client.get(PODS, "a", "default")["metadata"]["uid"]
    events = [
        (uid, "no network", "Warning", "kubelet"),
        (uid, "no driver", "Warning", "kubelet"),
        ("earlier-pod", "no volume", "Warning", "kubelet"),
        (uid, "pulled", "Normal", "kubelet"),
        (uid, "no node", "Warning", "default-scheduler"),
    ]
    for number, (event_uid, text, kind, component) in enumerate(events):
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
                "type": kind,
                "source": {"component": component},
                "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
            },
        )

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "bound")
    assert found["answer"] == (
        "default/a is scheduled on node-01 already; it waits there: FailedPrepareDynamicResources: "
        "no driver"
    )
