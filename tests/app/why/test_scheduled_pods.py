"""The verb `why` on pods that have a node: what is wrong with them there."""

from typing import Any

import pytest

from dra_simulator.rest import CLAIMS, EVENTS, PODS
from tensorfusion_dra.core import names
from tests.dra_simulator.waiting import eventually
from tests.support import objects
from tests.support.builders.pods import pod_annotations
from tests.support.builders.stored_claims import template_claim
from tests.support.gpu_cluster import ANNOTATED, DRIVER, Cluster, request, two_cards

Capture = pytest.CaptureFixture[str]


def test_pod_in_terminating(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
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
    cluster.add_node("node-01", *two_cards())
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


def filled_claim(pod: dict[str, Any], vram: str) -> dict[str, Any]:
    """The claim that the webhook filled for the pod."""
    claim = template_claim()
    claim["metadata"].update(name="a", namespace="default")
    claim["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": pod["metadata"]["uid"]}
    ]
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    exactly["selectors"] = objects.expressions(f'device.driver == "{DRIVER}"')
    exactly["capacity"] = {"requests": {"tflops": "100", "vram": vram}}
    return claim


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize(("vram", "differs"), [("16Gi", False), ("20Gi", True)])
def test_claim_made_before_the_annotations_were_edited(
    cluster: Cluster, capsys: Capture, vram: str, *, bound: bool, differs: bool
) -> None:
    cluster.add_node("node-01", *two_cards())
    annotations = {
        **ANNOTATED,
        **pod_annotations(dra_cel_expression=f'device.driver == "{DRIVER}"'),
    }
    entries = [{"name": names.POD_CLAIM, "resourceClaimName": "a"}]
    pod = cluster.add_pod("a", metadata={"annotations": annotations}, resourceClaims=entries)
    cluster.client.create(CLAIMS, filled_claim(pod, vram))
    if bound:
        cluster.schedule()
        eventually(lambda: cluster.client.get(PODS, "a", "default")["spec"].get("nodeName"))

    code, found = cluster.why(capsys, "a")

    texts = [finding["found"] for finding in found["findings"]]
    expected = "was made before the pod's annotations were edited; it still has the earlier vram"
    assert (code, found["state"]) == (0, "bound" if bound else "fits")
    assert any(text.startswith(f"{expected} {vram}") for text in texts) is differs


def test_pod_that_does_not_start_on_its_node(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
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
