"""Deletion of objects."""

import pytest

from tests.dra_simulator.api.client import CLAIMS, NODES, SLICES, Client
from tests.support.builders.documents import claim_document, slice_document


def test_a_delete_returns_the_object_and_removes_it(api: Client) -> None:
    made = api.post(SLICES, slice_document()).json

    reply = api.delete(f"{SLICES}/slice-a")

    assert (reply.code, reply.json["kind"]) == (200, "ResourceSlice")
    assert reply.json["metadata"]["uid"] == made["metadata"]["uid"]
    assert api.get(f"{SLICES}/slice-a").code == 404
    assert api.delete(f"{SLICES}/slice-a").code == 404


def test_a_delete_of_a_node_returns_a_status(api: Client) -> None:
    made = api.post(NODES, {"metadata": {"name": "node-a"}}).json

    reply = api.delete(f"{NODES}/node-a")

    assert (reply.json["kind"], reply.json["status"]) == ("Status", "Success")
    assert reply.json["details"] == {
        "name": "node-a",
        "kind": "nodes",
        "uid": made["metadata"]["uid"],
    }


@pytest.mark.parametrize("precondition", [{"uid": "other"}, {"resourceVersion": "1"}])
def test_a_delete_with_an_unmet_precondition_is_a_conflict(
    api: Client, precondition: dict[str, str]
) -> None:
    api.post(SLICES, slice_document())

    reply = api.delete(f"{SLICES}/slice-a", {"preconditions": precondition})

    assert (reply.code, reply.json["reason"]) == (409, "Conflict")
    assert "in the precondition" in reply.message
    assert api.get(f"{SLICES}/slice-a").code == 200


def test_a_delete_of_a_collection_removes_the_selected_objects(api: Client) -> None:
    for name, node in (("slice-a", "node-a"), ("slice-b", "node-b"), ("slice-c", "node-a")):
        api.post(SLICES, slice_document(name, node=node))

    reply = api.delete(f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-a")

    assert reply.json["kind"] == "ResourceSliceList"
    assert [item["metadata"]["name"] for item in reply.json["items"]] == ["slice-a", "slice-c"]
    left = api.get(SLICES).json["items"]
    assert [item["metadata"]["name"] for item in left] == ["slice-b"]


def test_an_object_is_removed_with_its_last_finalizer(api: Client) -> None:
    held = claim_document()
    held["metadata"]["finalizers"] = ["example.com/a", "example.com/b"]
    api.post(CLAIMS, held)

    deleted = api.delete(f"{CLAIMS}/claim-a").json
    added = {"metadata": {"finalizers": ["example.com/a", "example.com/c"]}}
    refused = api.patch(f"{CLAIMS}/claim-a", added)
    one_left = api.patch(f"{CLAIMS}/claim-a", {"metadata": {"finalizers": ["example.com/b"]}})
    still_there = api.get(f"{CLAIMS}/claim-a").code
    api.patch(f"{CLAIMS}/claim-a", {"metadata": {"finalizers": None}})

    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 0
    assert deleted["metadata"]["deletionTimestamp"]
    assert refused.causes[0] == ("metadata.finalizers", "FieldValueForbidden")
    assert one_left.code == still_there == 200
    assert api.get(f"{CLAIMS}/claim-a").code == 404


def test_a_namespace_is_removed_with_everything_in_it(api: Client) -> None:
    api.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    api.post(CLAIMS.replace("default", "team"), claim_document())

    api.delete("/api/v1/namespaces/team")

    assert api.get("/apis/resource.k8s.io/v1/resourceclaims").json["items"] == []
    assert api.get("/api/v1/namespaces/team").code == 404
