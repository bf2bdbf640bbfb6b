"""Field and label selectors."""

from collections.abc import Iterator

import pytest

from tests.dra_simulator.api.client import (
    CLAIMS,
    EVENTS,
    NODES,
    PODS,
    SLICES,
    Client,
    served,
    with_metadata,
)
from tests.support.builders.documents import event_document, pod_with_claim, slice_document


@pytest.fixture(scope="module")
def api() -> Iterator[Client]:
    """Client of a server with slices, pods, nodes and events to select."""
    part = {**event_document(pod="pod-b")["involvedObject"], "fieldPath": "spec.a"}
    objects = (
        (SLICES, with_metadata(slice_document("a", node="node-a"), labels={"tier": "x"})),
        (SLICES, with_metadata(slice_document("b", node="node-b"), labels={"tier": "y"})),
        (SLICES, slice_document("c", node="node-a")),
        (SLICES, slice_document("d", nodeName=None, allNodes=True, driver="other.example.com")),
        (PODS, pod_with_claim("waiting")),
        (PODS, pod_with_claim("bound", nodeName="node-a")),
        (NODES, {"metadata": {"name": "node-a"}}),
        (NODES, {"metadata": {"name": "node-b"}, "spec": {"unschedulable": True}}),
        (EVENTS, event_document("a", type="Warning")),
        (EVENTS, event_document("b", reason="Failed", reportingComponent="scheduler")),
        (EVENTS, event_document("c", involvedObject=part)),
    )
    with served() as client:
        for path, document in objects:
            client.post(path, document)
        yield client


@pytest.mark.parametrize(
    ("path", "query", "text"),
    [
        (
            SLICES,
            "fieldSelector=spec.allNodes%3Dp",
            "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.allNodes",
        ),
        (SLICES, "fieldSelector=metadata.namespace%3Dx", "field label not supported"),
        (CLAIMS, "fieldSelector=spec.nodeName%3Dx", "field label not supported"),
        (SLICES, "fieldSelector=spec.nodeName", "invalid selector: 'spec.nodeName'"),
        (SLICES, "labelSelector=a%20b", "unable to parse requirement"),
    ],
)
def test_a_selector_that_cannot_be_used_is_a_bad_request(
    api: Client, path: str, query: str, text: str
) -> None:
    reply = api.get(f"{path}?{query}")

    assert reply.code == 400
    assert text in reply.message
