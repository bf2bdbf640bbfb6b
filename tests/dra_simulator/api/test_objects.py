"""Creation, reads, changes, patches, applies and deletion of objects."""

import json
import re
from typing import Final

import pytest

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
    with_metadata,
)
from tests.support.builders.documents import (
    SHARE,
    allocation_document,
    claim_document,
    condition,
    device_status,
    result_document,
    slice_document,
)

SLICE: Final = f"{SLICES}/slice-a"
CLAIM: Final = f"{CLAIMS}/claim-a"
STATUS: Final = f"{CLAIM}/status"
EVERYWHERE: Final = "/apis/resource.k8s.io/v1/resourceclaims"


def test_the_server_sets_version_uid_times_and_generation(api: Client) -> None:
    past = dict.fromkeys(("creationTimestamp", "deletionTimestamp"), "2020-01-01T00:00:00Z")

    made = api.post(SLICES, with_metadata(slice_document(), uid="mine", generation=7, **past)).json

    assert api.get(SLICE).json == made
    forms = {
        "name": "slice-a",
        "generation": "1",
        "resourceVersion": r"[2-9]|\d\d+",
        "uid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "creationTimestamp": r"(?!2020)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    }
    assert made["metadata"].keys() == forms.keys()
    for name, form in forms.items():
        assert re.fullmatch(form, str(made["metadata"][name])), name


@pytest.mark.parametrize(
    ("base", "code", "name"),
    [
        ("a" * 100, 201, r"a{58}[a-z0-9]{5}"),
        ("a-", 201, r"a-[a-z0-9]{5}"),
        ("a.b-", 201, r"a\.b-[a-z0-9]{5}"),
        ("a.", 422, ""),
        ("-", 422, ""),
    ],
)
def test_a_generated_name_has_five_random_characters_after_a_valid_start(
    api: Client, base: str, code: int, name: str
) -> None:
    reply = api.post(SLICES, {**slice_document(), "metadata": {"generateName": base}})

    assert reply.code == code
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
    assert api.get(f"{SLICES}/nope").json == {
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
    _, made = (api.post(SLICES, slice_document(name)).json for name in ("b", "a"))

    found = api.get(SLICES)

    assert found.names == ["a", "b"]
    assert found.json.pop("items")[0] == {field: made[field] for field in ("metadata", "spec")}
    assert found.json == {
        "kind": "ResourceSliceList",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"resourceVersion": made["metadata"]["resourceVersion"]},
    }


def test_claims_of_all_namespaces_can_be_listed(stored: Client) -> None:
    stored.post(CLAIMS.replace("default", "kube-system"), claim_document())

    assert [len(stored.get(path).names) for path in (EVERYWHERE, CLAIMS)] == [2, 1]


def test_the_version_counts_changes_and_the_generation_those_of_the_spec(api: Client) -> None:
    made = api.post(SLICES, slice_document()).json
    assert api.put(SLICE, made).json == api.put(SLICE, slice_document()).json == made

    labelled = api.put(SLICE, with_metadata(made, labels={"a": "b"})).json
    changed = api.put(SLICE, {**labelled, "spec": slice_document(devices=[])["spec"]}).json

    stages = [each["metadata"] for each in (made, labelled, changed)]
    assert [(each["uid"], each["generation"]) for each in stages] == [
        (stages[0]["uid"], generation) for generation in (1, 1, 2)
    ]
    versions = [int(each["resourceVersion"]) for each in stages]
    assert versions == sorted({*versions})


def test_a_dry_run_returns_the_result_and_stores_nothing(api: Client) -> None:
    made = api.post(f"{SLICES}?dryRun=All", slice_document())
    assert (made.code, made.json["metadata"].get("resourceVersion")) == (201, None)
    assert api.get(SLICE).code == 404

    stored = api.post(SLICES, slice_document()).json
    would_be = api.put(f"{SLICE}?dryRun=All", slice_document(devices=[{"name": "b"}])).json
    assert would_be["spec"]["devices"] == [{"name": "b"}]
    assert would_be["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
    assert api.delete(f"{SLICE}?dryRun=All").code == 200
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

    assert made["status"] == changed["status"] == {}


def test_a_delete_returns_the_object_and_removes_it(api: Client) -> None:
    made = api.post(SLICES, slice_document()).json

    deleted = api.delete(SLICE).json

    assert (deleted["kind"], deleted["metadata"]["uid"]) == (made["kind"], made["metadata"]["uid"])
    assert api.get(SLICE).code == 404


def test_a_delete_of_a_collection_removes_the_selected_objects(api: Client) -> None:
    for name, node in (("slice-a", "node-a"), ("slice-b", "node-b"), ("slice-c", "node-a")):
        api.post(SLICES, slice_document(name, node=node))

    reply = api.delete(f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-a")

    assert (reply.json["kind"], reply.names) == ("ResourceSliceList", ["slice-a", "slice-c"])
    assert api.get(SLICES).names == ["slice-b"]


def test_an_object_is_removed_with_its_last_finalizer(api: Client) -> None:
    def finalizers(*names: str) -> Reply:
        return api.patch(CLAIM, {"metadata": {"finalizers": list(names) or None}})

    api.post(CLAIMS, with_metadata(claim_document(), finalizers=["a.b/a", "a.b/b"]))

    deleted = api.delete(CLAIM).json["metadata"]

    assert deleted["deletionTimestamp"]
    assert deleted["deletionGracePeriodSeconds"] == 0
    assert finalizers("a.b/a", "a.b/c").causes[0] == ("metadata.finalizers", "FieldValueForbidden")
    assert finalizers("a.b/b").code == api.get(CLAIM).code == 200
    finalizers()
    assert api.get(CLAIM).code == 404


def test_a_namespace_is_removed_with_everything_in_it(api: Client) -> None:
    api.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    api.post(CLAIMS.replace("default", "team"), claim_document())

    api.delete("/api/v1/namespaces/team")

    assert api.get(EVERYWHERE).names == []
    assert api.get("/api/v1/namespaces/team").code == 404


def test_a_merge_patch_sets_fields_and_null_removes_them(api: Client) -> None:
    api.post(SLICES, with_metadata(slice_document(), labels={"a": "1"}))

    change = {"metadata": {"labels": {"a": None, "b": "2"}}, "spec": {"devices": None}}
    patched = api.patch(SLICE, change).json

    assert "devices" not in patched["spec"]
    assert patched["metadata"] | {"labels": {"b": "2"}, "generation": 2} == patched["metadata"]


def test_a_strategic_patch_merges_the_lists_that_have_a_key(api: Client) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u"}
    api.post(SLICES, with_metadata(slice_document(), ownerReferences=[owner], finalizers=["a.b/c"]))

    change = {"ownerReferences": [{"uid": "u", "name": "node-b"}], "finalizers": ["a.b/d"]}
    merged = api.patch(SLICE, {"metadata": change}, STRATEGIC).json["metadata"]
    removal = {
        "ownerReferences": [{"uid": "u", "$patch": "delete"}],
        "$deleteFromPrimitiveList/finalizers": ["a.b/c"],
    }
    removed = api.patch(SLICE, {"metadata": removal}, STRATEGIC).json["metadata"]

    assert merged["ownerReferences"] == [{**owner, "name": "node-b"}]
    assert (merged["finalizers"], removed["finalizers"]) == (["a.b/d", "a.b/c"], ["a.b/d"])
    assert "ownerReferences" not in removed


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


@pytest.fixture
def allocated(api: Client) -> Client:
    """Client of a server that has a claim with two shares."""
    api.post(CLAIMS, claim_document())
    shares = allocation_document(result_document(), result_document(**SECOND))
    assert api.patch(STATUS, {"status": {"allocation": shares}}).code == 200
    return api


SECOND: Final = {"device": "gpu-1", "shareID": SHARE.replace("1", "9")}


def test_an_apply_merges_devices_by_driver_pool_device_and_share(allocated: Client) -> None:
    devices = [device_status(conditions=[condition()], data={"a": 1})]
    devices.append(device_status(**SECOND, conditions=None))

    for device in devices:
        body = {**claim_document(), "status": {"devices": [device]}}
        allocated.patch(f"{STATUS}?fieldManager={device['device']}", body, APPLY)

    found = allocated.get(CLAIM).json["status"]
    assert found["devices"] == devices
    assert "allocation" in found


def test_a_strategic_patch_replaces_lists_that_the_schema_does_not_merge(
    allocated: Client,
) -> None:
    devices = [device_status(), device_status(**SECOND)]  # of the same driver, the first key

    patched = allocated.patch(STATUS, {"status": {"devices": devices}}, STRATEGIC).json

    assert [device["device"] for device in patched["status"]["devices"]] == ["gpu-0", "gpu-1"]


def test_an_apply_creates_a_missing_object_and_may_be_yaml(api: Client) -> None:
    text = json.dumps(slice_document()).replace('"kind": "ResourceSlice", ', "")
    yaml = f"# a comment\n{{kind: ResourceSlice, {text[1:]}"

    assert [api.patch(APPLIED, body, APPLY).code for body in (yaml, slice_document())] == [201, 200]
