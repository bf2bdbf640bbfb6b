"""Field and label selectors."""

from collections.abc import Iterator

import pytest

from tests.dra_simulator.api.client import CLAIMS, NODES, PODS, SLICES, Client, served
from tests.support.builders.documents import pod_with_claim, slice_document


@pytest.fixture(scope="module")
def api() -> Iterator[Client]:
    """Client of a server with slices, pods and nodes to select."""
    with served() as client:
        for name, node, tier in (("a", "node-a", "x"), ("b", "node-b", "y"), ("c", "node-a", "")):
            found = slice_document(name, node=node)
            found["metadata"]["labels"] = {"tier": tier} if tier else {}
            client.post(SLICES, found)
        everywhere = slice_document("d", nodeName=None, allNodes=True, driver="other.example.com")
        client.post(SLICES, everywhere)
        client.post(PODS, pod_with_claim("waiting"))
        client.post(PODS, pod_with_claim("bound", nodeName="node-a"))
        client.post(NODES, {"metadata": {"name": "node-a"}})
        client.post(NODES, {"metadata": {"name": "node-b"}, "spec": {"unschedulable": True}})
        yield client


@pytest.mark.parametrize(
    ("path", "query", "names"),
    [
        (SLICES, "fieldSelector=spec.nodeName%3Dnode-a", "ac"),
        (SLICES, "fieldSelector=spec.nodeName%3D", "d"),
        (SLICES, "fieldSelector=spec.nodeName!%3Dnode-a", "bd"),
        (SLICES, "fieldSelector=spec.driver%3D%3Dother.example.com", "d"),
        (
            SLICES,
            "fieldSelector=spec.driver%3Dtensor-fusion.ai.dra-driver,spec.nodeName%3Dnode-b",
            "b",
        ),
        (SLICES, "fieldSelector=metadata.name%3Dc", "c"),
        (SLICES, "fieldSelector=spec.pool.name%3Dpool-a/node-b", "b"),
        (SLICES, "fieldSelector=", "abcd"),
        (SLICES, "labelSelector=tier%3Dx", "a"),
        (SLICES, "labelSelector=tier!%3Dx", "bcd"),
        (SLICES, "labelSelector=tier", "ab"),
        (SLICES, "labelSelector=!tier", "cd"),
        (SLICES, "labelSelector=tier%20in%20(x,y)", "ab"),
        (SLICES, "labelSelector=tier%20notin%20(x),tier", "b"),
        (SLICES, "labelSelector=tier%3Dx&fieldSelector=spec.nodeName%3Dnode-b", ""),
        (PODS, "fieldSelector=spec.nodeName%3D,status.phase%3DPending", ["waiting"]),
        (PODS, "fieldSelector=metadata.namespace%3Ddefault,spec.nodeName%3Dnode-a", ["bound"]),
        (NODES, "fieldSelector=spec.unschedulable%3Dfalse", ["node-a"]),
        (NODES, "fieldSelector=spec.unschedulable%3Dtrue", ["node-b"]),
    ],
)
def test_a_selector_selects_the_matching_objects(
    api: Client, path: str, query: str, names: list[str] | str
) -> None:
    found = api.get(f"{path}?{query}").json["items"]

    assert [item["metadata"]["name"] for item in found] == list(names)


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
