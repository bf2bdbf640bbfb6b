"""Creation, reads, changes, patches, applies and deletion of objects."""

import json
import re
import uuid
from typing import Final

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    APPLY,
    CLAIMS,
    JSON_PATCH,
    MERGE,
    PODS,
    SLICES,
    STRATEGIC,
    Client,
    Json,
    Reply,
)
from tests.support.builders.documents import (
    SHARE,
    allocation_document,
    claim_document,
    condition,
    device_document,
    device_status,
    result_document,
    slice_document,
)

SLICE: Final = f"{SLICES}/slice-a"
CLAIM: Final = f"{CLAIMS}/claim-a"
STATUS: Final = f"{CLAIM}/status"
EVERYWHERE: Final = "/apis/resource.k8s.io/v1/resourceclaims"


def with_metadata(document: Json, **metadata: object) -> Json:
    """Return the document with more metadata."""
    return {**document, "metadata": {**document["metadata"], **metadata}}


def test_the_server_sets_version_uid_times_and_generation(api: Client) -> None:
    past = dict.fromkeys(("creationTimestamp", "deletionTimestamp"), "2020-01-01T00:00:00Z")

    made = api.post(SLICES, with_metadata(slice_document(), uid="mine", generation=7, **past))

    metadata = made.json["metadata"]
    assert made.code == 201
    assert metadata["generation"] == 1
    assert int(metadata["resourceVersion"]) > 1
    assert str(uuid.UUID(metadata["uid"])) == metadata["uid"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert not metadata["creationTimestamp"].startswith("2020")
    assert "deletionTimestamp" not in metadata
    assert api.get(SLICE).json == made.json


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("a" * 100, r"a{58}[a-z0-9]{5}"),
        ("a-", r"a-[a-z0-9]{5}"),
        ("a.b-", r"a\.b-[a-z0-9]{5}"),
        ("a.", ""),
        ("-", ""),
    ],
)
def test_a_generated_name_has_five_random_characters_after_a_valid_start(
    api: Client, base: str, name: str
) -> None:
    nameless = {**slice_document(), "metadata": {"generateName": base}}

    replies = [api.post(SLICES, nameless) for _ in range(2)]

    assert [reply.code for reply in replies] == [201 if name else 422] * 2
    for reply in replies:
        assert re.fullmatch(name, reply.json["metadata"].get("name", ""))


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "text"),
    [
        ("GET", f"{SLICES}?resourceVersion=999999", None, 504, "Too large resource version"),
        ("GET", f"{SLICES}?resourceVersion=abc", None, 500, "invalid syntax"),
        ("GET", f"{SLICES}?watch=true&resourceVersion=abc", None, 500, "invalid syntax"),
        ("GET", "/apis/resource.k8s.io/v1/nothing", None, 404, "could not find"),
        ("GET", "/apis/nothing/v1/things", None, 404, "404 page not found"),
        ("GET", "/api/v1/namespaces/default/nodes", None, 404, "could not find"),
        ("GET", f"{SLICE}/status", None, 404, "could not find"),
        ("GET", f"{PODS}/pod-a/binding", None, 405, "does not allow this method"),
        ("POST", SLICES, slice_document(), 409, '"slice-a" already exists'),
        ("POST", SLICES, {**slice_document(), "metadata": {}}, 422, "metadata.name: Required"),
        ("POST", SLICES, with_metadata(slice_document(), resourceVersion="5"), 500, "should not"),
        ("POST", f"{SLICES}?dryRun=Some", slice_document("b"), 422, "dryRun: Unsupported value"),
        ("POST", f"{SLICES}?fieldValidation=Lax", slice_document("b"), 422, "fieldValidation: "),
        ("POST", SLICE, slice_document(), 405, "does not allow this method"),
        ("POST", EVERYWHERE, claim_document("b"), 405, "does not allow this method"),
        ("POST", f"{CLAIM}/status", claim_document(), 405, "does not allow this method"),
        (
            "POST",
            CLAIMS.replace("default", "nowhere"),
            claim_document(),
            404,
            'namespaces "nowhere" not found',
        ),
        (
            "POST",
            CLAIMS,
            with_metadata(claim_document("b"), namespace="kube-system"),
            400,
            "does not match the namespace sent on the request",
        ),
        ("PUT", f"{SLICES}/nope", slice_document("nope"), 404, '"nope" not found'),
        ("PUT", SLICE, slice_document("b"), 400, "does not match the name on the URL"),
        ("PUT", SLICE, {**slice_document(), "metadata": {}}, 400, "name must be provided"),
        ("PUT", SLICE, with_metadata(slice_document(), uid="other"), 409, "UID in precondition"),
        (
            "PUT",
            SLICE,
            with_metadata(slice_document(), resourceVersion="1"),
            409,
            'on resourceslices.resource.k8s.io "slice-a": the object has been modified; please'
            " apply your changes to the latest version and try again",
        ),
        ("PATCH", SLICES, {}, 405, "does not allow this method"),
        ("DELETE", f"{SLICES}/nope", None, 404, '"nope" not found'),
        ("DELETE", "/api/v1/pods", None, 405, "does not allow this method"),
        ("DELETE", SLICE, {"preconditions": {"uid": "other"}}, 409, "UID in the precondition"),
        (
            "DELETE",
            SLICE,
            {"preconditions": {"resourceVersion": "1"}},
            409,
            "ResourceVersion in the precondition",
        ),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused(
    stored: Client, method: str, path: str, body: Json | None, *, code: int, text: str
) -> None:
    before = stored.get(SLICES).json

    reply = stored.call(method, path, body)

    assert reply.code == code
    assert text in reply.message
    assert stored.get(SLICES).json == before


@pytest.fixture
def stored(api: Client) -> Client:
    """Client of a server that has a slice and a claim."""
    api.post(SLICES, slice_document())
    api.post(CLAIMS, claim_document())
    return api


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


def test_claims_of_all_namespaces_can_be_listed(stored: Client) -> None:
    stored.post(CLAIMS.replace("default", "kube-system"), claim_document())

    found = [len(stored.get(path).json["items"]) for path in (EVERYWHERE, CLAIMS)]

    assert found == [2, 1]


def test_the_version_counts_changes_and_the_generation_those_of_the_spec(api: Client) -> None:
    made = api.post(SLICES, slice_document()).json
    same = [api.put(SLICE, document).json for document in (made, slice_document())]

    labelled = api.put(SLICE, with_metadata(made, labels={"a": "b"})).json
    labelled["spec"]["devices"][0]["name"] = "gpu-1"
    changed = api.put(SLICE, labelled).json

    assert same == [made, made]
    assert labelled["metadata"]["generation"] == 1
    assert int(labelled["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]


def test_a_dry_run_returns_the_result_and_stores_nothing(api: Client) -> None:
    made = api.post(f"{SLICES}?dryRun=All", slice_document())
    missing = api.get(SLICE)
    stored = api.post(SLICES, slice_document()).json
    would_be = api.put(f"{SLICE}?dryRun=All", slice_document(devices=[device_document("gpu-1")]))
    would_go = api.delete(f"{SLICE}?dryRun=All")

    assert made.code == 201
    assert "resourceVersion" not in made.json["metadata"]
    assert missing.code == 404
    assert would_be.json["spec"]["devices"][0]["name"] == "gpu-1"
    assert would_be.json["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
    assert would_go.code == 200
    assert api.get(SLICE).json == stored


def test_names_labels_and_owners_are_checked(api: Client) -> None:
    wrong = with_metadata(
        slice_document("Upper"),
        labels={"a": "b c"},
        annotations={"a b": "c"},
        finalizers=["plain"],
        ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "node-a"}],
        namespace="default",
    )

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
    status = {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}

    made = api.post(CLAIMS, claim_document() | status).json
    changed = api.patch(CLAIM, status, MERGE).json

    assert made["status"] == {}
    assert changed["status"] == {}


def test_requests_are_counted_by_verb_and_resource(api: Client, server: ApiServer) -> None:
    api.post(CLAIMS, claim_document())
    api.get(CLAIMS)
    api.patch(f"{CLAIM}/status", {"status": {}})
    api.delete(CLAIMS)

    assert server.requests.all() == {
        ("create", "resourceclaims"): 1,
        ("list", "resourceclaims"): 1,
        ("patch", "resourceclaims/status"): 1,
        ("deletecollection", "resourceclaims"): 1,
    }
    assert server.requests.count("list") == 1
    server.requests.reset()
    assert server.requests.count() == 0


def test_a_delete_returns_the_object_and_removes_it(api: Client) -> None:
    made = api.post(SLICES, slice_document()).json

    reply = api.delete(SLICE)

    assert (reply.code, reply.json["kind"]) == (200, "ResourceSlice")
    assert reply.json["metadata"]["uid"] == made["metadata"]["uid"]
    assert api.get(SLICE).code == 404


def test_a_delete_of_a_collection_removes_the_selected_objects(api: Client) -> None:
    for name, node in (("slice-a", "node-a"), ("slice-b", "node-b"), ("slice-c", "node-a")):
        api.post(SLICES, slice_document(name, node=node))

    reply = api.delete(f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-a")

    assert reply.json["kind"] == "ResourceSliceList"
    assert [item["metadata"]["name"] for item in reply.json["items"]] == ["slice-a", "slice-c"]
    left = api.get(SLICES).json["items"]
    assert [item["metadata"]["name"] for item in left] == ["slice-b"]


def test_an_object_is_removed_with_its_last_finalizer(api: Client) -> None:
    finalizers = ["example.com/a", "example.com/b"]
    api.post(CLAIMS, with_metadata(claim_document(), finalizers=finalizers))

    deleted = api.delete(CLAIM).json
    added = {"metadata": {"finalizers": ["example.com/a", "example.com/c"]}}
    refused = api.patch(CLAIM, added)
    one_left = api.patch(CLAIM, {"metadata": {"finalizers": ["example.com/b"]}})
    still_there = api.get(CLAIM).code
    api.patch(CLAIM, {"metadata": {"finalizers": None}})

    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 0
    assert deleted["metadata"]["deletionTimestamp"]
    assert refused.causes[0] == ("metadata.finalizers", "FieldValueForbidden")
    assert one_left.code == still_there == 200
    assert api.get(CLAIM).code == 404


def test_a_namespace_is_removed_with_everything_in_it(api: Client) -> None:
    api.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    api.post(CLAIMS.replace("default", "team"), claim_document())

    api.delete("/api/v1/namespaces/team")

    assert api.get("/apis/resource.k8s.io/v1/resourceclaims").json["items"] == []
    assert api.get("/api/v1/namespaces/team").code == 404


def test_a_merge_patch_sets_fields_and_null_removes_them(api: Client) -> None:
    api.post(SLICES, slice_document())

    api.patch(SLICE, {"metadata": {"labels": {"a": "1", "b": "2"}}})
    patched = api.patch(SLICE, {"metadata": {"labels": {"a": None}}, "spec": {"devices": None}})

    assert patched.json["metadata"]["labels"] == {"b": "2"}
    assert "devices" not in patched.json["spec"]
    assert patched.json["metadata"]["generation"] == 2


def test_a_strategic_patch_merges_the_lists_that_have_a_key(api: Client) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u"}
    made = with_metadata(slice_document(), ownerReferences=[owner], finalizers=["a.b/c"])
    api.post(SLICES, made)

    renamed = [{"uid": "u", "name": "node-b"}]
    patch = {"metadata": {"ownerReferences": renamed, "finalizers": ["a.b/d"]}}
    merged = api.patch(SLICE, patch, STRATEGIC).json["metadata"]
    removal = {
        "metadata": {
            "ownerReferences": [{"uid": "u", "$patch": "delete"}],
            "$deleteFromPrimitiveList/finalizers": ["a.b/c"],
        }
    }
    removed = api.patch(SLICE, removal, STRATEGIC).json["metadata"]

    assert merged["ownerReferences"] == [{**owner, "name": "node-b"}]
    assert merged["finalizers"] == ["a.b/d", "a.b/c"]
    assert "ownerReferences" not in removed
    assert removed["finalizers"] == ["a.b/d"]


@pytest.mark.parametrize(
    ("operations", "names"),
    [
        ([{"op": "add", "path": "/spec/devices/-", "value": {"name": "c"}}], ["a", "b", "c"]),
        ([{"op": "add", "path": "/spec/devices/0", "value": {"name": "c"}}], ["c", "a", "b"]),
        ([{"op": "remove", "path": "/spec/devices/0"}], ["b"]),
        ([{"op": "replace", "path": "/spec/devices/1/name", "value": "c"}], ["a", "c"]),
        ([{"op": "replace", "path": "/spec/devices/0", "value": {"name": "c"}}], ["c", "b"]),
    ],
)
def test_a_json_patch_applies_its_operations_in_order(
    api: Client, operations: list[Json], names: list[str]
) -> None:
    api.post(SLICES, slice_document(devices=[{"name": "a"}, {"name": "b"}]))

    reply = api.patch(SLICE, operations, JSON_PATCH)

    assert [found["name"] for found in reply.json["spec"]["devices"]] == names


APPLIED: Final = f"{SLICE}?fieldManager=m"
UNTYPED: Final = {"metadata": {"name": "slice-a"}}


@pytest.mark.parametrize(
    ("path", "body", "kind", "code", "text"),
    [
        (f"{SLICES}/nope", {}, MERGE, 404, "not found"),
        (SLICE, {"metadata": {"resourceVersion": "1"}}, MERGE, 409, "has been modified"),
        (SLICE, {"metadata": {"name": "other"}}, MERGE, 400, "the name on the URL"),
        (SLICE, {"spec": {"driver": ""}}, MERGE, 422, "spec.driver: Required value"),
        (SLICE, {"spec": {"devices": "none"}}, MERGE, 400, "cannot unmarshal string"),
        (
            f"{SLICE}?fieldValidation=Strict",
            {"spec": {"foo": 1}},
            MERGE,
            400,
            'strict decoding error: unknown field "spec.foo"',
        ),
        (SLICE, "{", MERGE, 400, "error decoding patch"),
        (SLICE, [], MERGE, 400, "found list"),
        (SLICE, {}, JSON_PATCH, 400, "found dict"),
        (SLICE, {}, "application/json", 415, "Unsupported Media Type"),
        (SLICE, {"metadata": {"ownerReferences": [{}]}}, STRATEGIC, 400, "merge key: uid"),
        *(
            (SLICE, [operation], JSON_PATCH, 422, "rejected our request")
            for operation in (
                {"op": "remove", "path": "/spec/nothing"},
                {"op": "replace", "path": "/spec/nothing/more", "value": 1},
                {"op": "add", "path": "/spec/devices/9", "value": {}},
                {"op": "add", "path": "spec", "value": {}},
                {"op": "twist", "path": "/spec"},
                {"path": "/spec"},
            )
        ),
        (SLICE, slice_document(), APPLY, 422, "fieldManager: Required value"),
        (APPLIED, UNTYPED, APPLY, 400, "invalid object type: /, Kind="),
        (
            APPLIED,
            with_metadata(slice_document(), managedFields=[{}]),
            APPLY,
            400,
            "metadata.managedFields must be nil",
        ),
        *(
            (
                f"{APPLIED}&fieldValidation={validation}&force=false",
                slice_document(devicess=[]),
                APPLY,
                500,
                'unknown field "spec.devicess"',
            )
            for validation in ("Strict", "Warn", "Ignore")
        ),
        (f"{STATUS}?fieldManager=m", claim_document(), APPLY, 404, "not found"),
    ],
)
def test_a_patch_that_cannot_be_carried_out_is_refused(
    api: Client, path: str, body: object, kind: str, *, code: int, text: str
) -> None:
    made = api.post(SLICES, slice_document()).json

    reply = api.patch(path, body, kind)

    assert reply.code == code
    assert text in reply.message
    assert api.get(SLICE).json == made


def apply(api: Client, path: str, body: Json, query: str = "fieldManager=driver") -> Reply:
    return api.patch(f"{path}?{query}", body, APPLY)


def status(*devices: Json) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim-a"},
        "status": {"devices": list(devices)},
    }


@pytest.fixture
def allocated(api: Client) -> Client:
    """Client of a server that has a claim with two shares."""
    api.post(CLAIMS, claim_document())
    shares = allocation_document(result_document(), result_document(**SECOND))
    assert api.patch(STATUS, {"status": {"allocation": shares}}).code == 200
    return api


SECOND: Final = {"device": "gpu-1", "shareID": SHARE.replace("1", "9")}


def test_an_apply_merges_devices_by_driver_pool_device_and_share(allocated: Client) -> None:
    ready = device_status(conditions=[condition()], data={"a": 1})
    other = device_status(**SECOND, conditions=None)

    apply(allocated, STATUS, status(ready))
    apply(allocated, STATUS, status(other), "fieldManager=other")

    found = allocated.get(CLAIM).json["status"]
    assert found["devices"] == [ready, other]
    assert "allocation" in found


def test_a_strategic_patch_replaces_lists_that_the_schema_does_not_merge(
    allocated: Client,
) -> None:
    devices = [device_status(), device_status(**SECOND)]  # of the same driver, the first key
    allocated.patch(STATUS, {"status": {"devices": devices}}, STRATEGIC)

    stored = allocated.get(CLAIM).json["status"]["devices"]
    assert [device["device"] for device in stored] == ["gpu-0", "gpu-1"]


def test_an_apply_to_a_status_sets_nothing_else(allocated: Client) -> None:
    body = status(device_status())
    body["metadata"]["labels"] = {"a": "b"}
    body["spec"] = {"devices": {"requests": []}}

    reply = apply(allocated, STATUS, body)

    assert reply.code == 200
    assert "labels" not in reply.json["metadata"]
    assert reply.json["spec"]["devices"]["requests"]


def test_an_apply_creates_a_missing_object(api: Client) -> None:
    codes = [apply(api, SLICE, slice_document()).code for _ in range(2)]

    assert codes == [201, 200]


def test_an_apply_may_be_yaml(api: Client) -> None:
    text = json.dumps(slice_document()).replace('"kind": "ResourceSlice", ', "")
    yaml = f"# a comment\n{{kind: ResourceSlice, {text[1:]}"

    assert api.patch(APPLIED, yaml, APPLY).code == 201
