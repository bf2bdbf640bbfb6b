"""Creation, reads and changes of objects."""

import re
import uuid

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import CLAIMS, MERGE, PODS, SLICES, Client
from tests.support.builders.documents import claim_document, device_document, slice_document


def test_a_created_object_has_the_metadata_that_the_server_sets(api: Client) -> None:
    made = api.post(SLICES, slice_document())

    metadata = made.json["metadata"]
    assert made.code == 201
    assert metadata["generation"] == 1
    assert int(metadata["resourceVersion"]) > 1
    assert str(uuid.UUID(metadata["uid"])) == metadata["uid"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert api.get(f"{SLICES}/slice-a").json == made.json


def test_the_client_cannot_set_uid_times_and_generation(api: Client) -> None:
    wanted = slice_document()
    wanted["metadata"] |= {
        "uid": "mine",
        "generation": 7,
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "deletionTimestamp": "2020-01-01T00:00:00Z",
    }

    metadata = api.post(SLICES, wanted).json["metadata"]

    assert metadata["uid"] != "mine"
    assert metadata["generation"] == 1
    assert not metadata["creationTimestamp"].startswith("2020")
    assert "deletionTimestamp" not in metadata


def test_a_generated_name_has_five_random_characters_and_63_at_most(api: Client) -> None:
    wanted = slice_document()
    wanted["metadata"] = {"generateName": "a" * 100}

    names = {api.post(SLICES, wanted).json["metadata"]["name"] for _ in range(5)}

    assert len(names) == 5
    assert all(re.fullmatch(r"a{58}[a-z0-9]{5}", name) for name in names)


def test_a_missing_object_is_a_404_status(api: Client) -> None:
    reply = api.get(f"{SLICES}/nope")

    assert reply.code == 404
    assert reply.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'resourceslices.resource.k8s.io "nope" not found',
        "reason": "NotFound",
        "details": {"name": "nope", "group": "resource.k8s.io", "kind": "resourceslices"},
        "code": 404,
    }


def test_a_second_create_of_a_name_is_a_conflict(api: Client) -> None:
    api.post(SLICES, slice_document())

    reply = api.post(SLICES, slice_document())

    assert (reply.code, reply.json["reason"]) == (409, "AlreadyExists")
    assert reply.message == 'resourceslices.resource.k8s.io "slice-a" already exists'


def test_a_create_needs_a_name_and_must_not_set_a_resource_version(api: Client) -> None:
    unnamed, versioned = slice_document(), slice_document()
    del unnamed["metadata"]["name"]
    versioned["metadata"]["resourceVersion"] = "5"

    assert api.post(SLICES, unnamed).causes == [("metadata.name", "FieldValueRequired")]
    assert api.post(SLICES, versioned).code == 500


def test_a_create_needs_its_namespace(api: Client) -> None:
    reply = api.post(CLAIMS.replace("default", "nowhere"), claim_document())

    assert (reply.code, reply.message) == (404, 'namespaces "nowhere" not found')


def test_a_body_of_another_namespace_is_refused(api: Client) -> None:
    wanted = claim_document()
    wanted["metadata"]["namespace"] = "kube-system"

    reply = api.post(CLAIMS, wanted)

    assert reply.code == 400
    assert "does not match the namespace sent on the request" in reply.message


def test_a_list_has_a_version_and_items_without_kind(api: Client) -> None:
    api.post(SLICES, slice_document("slice-b"))
    api.post(SLICES, slice_document("slice-a"))

    found = api.get(SLICES).json

    assert (found["kind"], found["apiVersion"]) == ("ResourceSliceList", "resource.k8s.io/v1")
    assert [item["metadata"]["name"] for item in found["items"]] == ["slice-a", "slice-b"]
    assert not any("kind" in item or "apiVersion" in item for item in found["items"])
    assert found["metadata"]["resourceVersion"] == max(
        item["metadata"]["resourceVersion"] for item in found["items"]
    )


def test_a_list_of_a_future_version_is_refused_with_retry_after(api: Client) -> None:
    reply = api.get(f"{SLICES}?resourceVersion=999999")

    assert (reply.code, reply.json["reason"]) == (504, "Timeout")
    assert reply.headers["retry-after"] == ["1"]


def test_claims_of_all_namespaces_can_be_listed_but_not_created(api: Client) -> None:
    everywhere = "/apis/resource.k8s.io/v1/resourceclaims"
    api.post(CLAIMS, claim_document())
    api.post(CLAIMS.replace("default", "kube-system"), claim_document())

    assert len(api.get(everywhere).json["items"]) == 2
    assert len(api.get(CLAIMS).json["items"]) == 1
    assert api.post(everywhere, claim_document()).code == 405


def test_an_update_needs_the_latest_version_or_none(api: Client) -> None:
    first = api.post(SLICES, slice_document()).json
    second = slice_document(devices=[device_document("gpu-1")])

    accepted = api.put(f"{SLICES}/slice-a", second)
    stale = api.put(f"{SLICES}/slice-a", first)

    assert accepted.code == 200
    assert (stale.code, stale.json["reason"]) == (409, "Conflict")
    assert stale.message == (
        'Operation cannot be fulfilled on resourceslices.resource.k8s.io "slice-a": the object has'
        " been modified; please apply your changes to the latest version and try again"
    )


def test_an_update_that_changes_nothing_keeps_the_version(api: Client) -> None:
    made = api.post(SLICES, slice_document()).json

    assert api.put(f"{SLICES}/slice-a", made).json == made
    assert api.put(f"{SLICES}/slice-a", slice_document()).json == made


def test_the_generation_counts_changes_of_the_spec_only(api: Client) -> None:
    made = api.post(SLICES, slice_document()).json
    made["metadata"]["labels"] = {"a": "b"}

    labelled = api.put(f"{SLICES}/slice-a", made).json
    labelled["spec"]["devices"][0]["name"] = "gpu-1"
    changed = api.put(f"{SLICES}/slice-a", labelled).json

    assert labelled["metadata"]["generation"] == 1
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]


def test_an_update_needs_an_object_of_its_name_and_uid(api: Client) -> None:
    api.post(SLICES, slice_document())
    replaced = slice_document()
    replaced["metadata"]["uid"] = "other"

    assert api.put(f"{SLICES}/nope", slice_document("nope")).code == 404
    other = api.put(f"{SLICES}/slice-a", slice_document("slice-b"))
    assert (other.code, "does not match the name on the URL" in other.message) == (400, True)
    assert api.put(f"{SLICES}/slice-a", replaced).code == 409


def test_a_dry_run_returns_the_result_and_stores_nothing(api: Client) -> None:
    made = api.post(f"{SLICES}?dryRun=All", slice_document())
    missing = api.get(f"{SLICES}/slice-a")
    stored = api.post(SLICES, slice_document()).json
    would_be = api.put(
        f"{SLICES}/slice-a?dryRun=All", slice_document(devices=[device_document("gpu-1")])
    )
    would_go = api.delete(f"{SLICES}/slice-a?dryRun=All")

    assert made.code == 201
    assert "resourceVersion" not in made.json["metadata"]
    assert missing.code == 404
    assert would_be.json["spec"]["devices"][0]["name"] == "gpu-1"
    assert would_be.json["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
    assert would_go.code == 200
    assert api.get(f"{SLICES}/slice-a").json == stored


def test_unknown_options_are_refused(api: Client) -> None:
    for query in ("dryRun=Some", "fieldValidation=Lax", f"fieldManager={'m' * 129}"):
        reply = api.post(f"{SLICES}?{query}", slice_document())

        assert reply.code == 422
        assert reply.causes[0][0] == query.partition("=")[0]


def test_names_labels_and_owners_are_checked(api: Client) -> None:
    wrong = slice_document("Upper")
    wrong["metadata"] |= {
        "labels": {"a": "b c"},
        "annotations": {"a b": "c"},
        "finalizers": ["plain"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a"}],
        "namespace": "default",
    }

    reply = api.post(SLICES, wrong)

    assert {path for path, _ in reply.causes} == {
        "metadata.name",
        "metadata.labels",
        "metadata.annotations",
        "metadata.finalizers[0]",
        "metadata.ownerReferences.uid",
        "metadata.namespace",
    }


def test_a_status_cannot_be_set_through_the_object_itself(api: Client) -> None:
    wanted = claim_document()
    wanted["status"] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}

    made = api.post(CLAIMS, wanted).json
    changed = api.patch(f"{CLAIMS}/claim-a", {"status": wanted["status"]}, MERGE).json

    assert made["status"] == {}
    assert changed["status"] == {}


def test_paths_that_are_not_served_are_404_or_405(api: Client) -> None:
    assert api.get("/apis/resource.k8s.io/v1/nothing").code == 404
    assert api.get("/apis/nothing/v1/things").json["text"] == "404 page not found\n"
    assert api.get("/api/v1/namespaces/default/nodes").code == 404
    assert api.get(f"{SLICES}/slice-a/status").code == 404
    assert api.post(f"{SLICES}/slice-a", slice_document()).code == 405
    assert api.patch(SLICES, {}).code == 405
    assert api.delete("/api/v1/pods").code == 405
    assert api.post(f"{CLAIMS}/claim-a/status", claim_document()).code == 405
    assert api.get(f"{PODS}/pod-a/binding").code == 405


def test_requests_are_counted_by_verb_and_resource(api: Client, server: ApiServer) -> None:
    api.post(CLAIMS, claim_document())
    api.get(CLAIMS)
    api.patch(f"{CLAIMS}/claim-a/status", {"status": {}})
    api.delete(CLAIMS)

    assert server.requests.all() == {
        ("create", "resourceclaims"): 1,
        ("list", "resourceclaims"): 1,
        ("patch", "resourceclaims/status"): 1,
        ("deletecollection", "resourceclaims"): 1,
    }
    assert server.requests.writes() == 3
    assert server.requests.count("list") == 1
    server.requests.reset()
    assert server.requests.count() == 0
