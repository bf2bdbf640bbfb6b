"""Creation, reads, changes, patches, applies and deletion of objects."""

import json
import re
import uuid

import pytest

from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import (
    APPLY,
    CLAIMS,
    JSON_PATCH,
    MERGE,
    NODES,
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
    pod_with_claim,
    result_document,
    slice_document,
)


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
    for query in ("dryRun=Some", "fieldValidation=Lax"):
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


SLICE = f"{SLICES}/slice-a"


def test_a_merge_patch_sets_fields_and_null_removes_them(api: Client) -> None:
    api.post(SLICES, slice_document())

    api.patch(SLICE, {"metadata": {"labels": {"a": "1", "b": "2"}}})
    patched = api.patch(SLICE, {"metadata": {"labels": {"a": None}}, "spec": {"devices": None}})

    assert patched.json["metadata"]["labels"] == {"b": "2"}
    assert "devices" not in patched.json["spec"]
    assert patched.json["metadata"]["generation"] == 2


def test_a_patch_needs_its_object_and_the_version_it_names(api: Client) -> None:
    api.post(SLICES, slice_document())

    missing = api.patch(f"{SLICES}/nope", {})
    stale = api.patch(SLICE, {"metadata": {"resourceVersion": "1"}})
    renamed = api.patch(SLICE, {"metadata": {"name": "other"}})

    assert (missing.code, stale.code, renamed.code) == (404, 409, 400)


def test_the_result_of_a_patch_is_validated(api: Client) -> None:
    api.post(SLICES, slice_document())

    rule = api.patch(SLICE, {"spec": {"driver": ""}})
    kind = api.patch(SLICE, {"spec": {"devices": "none"}})
    strict = api.patch(f"{SLICE}?fieldValidation=Strict", {"spec": {"foo": 1}})
    warned = api.patch(SLICE, {"spec": {"foo": 1}})

    assert ("spec.driver", "FieldValueRequired") in rule.causes
    assert kind.code == strict.code == 400
    assert 'strict decoding error: unknown field "spec.foo"' in strict.message
    assert (warned.code, len(warned.headers["warning"])) == (200, 1)


def test_a_strategic_patch_merges_the_lists_that_have_a_key(api: Client) -> None:
    made = slice_document()
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u"}
    made["metadata"] |= {"ownerReferences": [owner], "finalizers": ["a.b/c"]}
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
    keyless = api.patch(SLICE, {"metadata": {"ownerReferences": [{"name": "x"}]}}, STRATEGIC)

    assert merged["ownerReferences"] == [{**owner, "name": "node-b"}]
    assert merged["finalizers"] == ["a.b/d", "a.b/c"]
    assert "ownerReferences" not in removed
    assert removed["finalizers"] == ["a.b/d"]
    assert keyless.code == 400


def test_a_strategic_patch_replaces_lists_that_the_schema_does_not_merge(api: Client) -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}]
    api.post(PODS, pod_with_claim(containers=[{"name": "app", "image": "a", "ports": ports}]))
    statuses = [{"name": "app", "ready": False}, {"name": "sidecar", "ready": False}]
    api.patch(f"{PODS}/pod-a/status", {"status": {"containerStatuses": statuses}}, MERGE)

    patch = {"status": {"containerStatuses": [{"name": "sidecar", "ready": True}]}}
    replaced = api.patch(f"{PODS}/pod-a/status", patch, STRATEGIC).json["status"]

    assert [entry["name"] for entry in replaced["containerStatuses"]] == ["sidecar"]


@pytest.mark.parametrize(
    ("operations", "names"),
    [
        ([{"op": "add", "path": "/spec/devices/-", "value": {"name": "c"}}], ["a", "b", "c"]),
        ([{"op": "add", "path": "/spec/devices/0", "value": {"name": "c"}}], ["c", "a", "b"]),
        ([{"op": "remove", "path": "/spec/devices/0"}], ["b"]),
        ([{"op": "replace", "path": "/spec/devices/1/name", "value": "c"}], ["a", "c"]),
        ([{"op": "move", "from": "/spec/devices/0", "path": "/spec/devices/1"}], ["b", "a"]),
        (
            [
                {"op": "copy", "from": "/spec/devices/0", "path": "/spec/devices/0"},
                {"op": "replace", "path": "/spec/devices/0/name", "value": "c"},
            ],
            ["c", "a", "b"],
        ),
        ([{"op": "test", "path": "/spec/nodeName", "value": "node-a"}], ["a", "b"]),
    ],
)
def test_a_json_patch_applies_its_operations_in_order(
    api: Client, operations: list[Json], names: list[str]
) -> None:
    api.post(SLICES, slice_document(devices=[{"name": "a"}, {"name": "b"}]))

    reply = api.patch(SLICE, operations, JSON_PATCH)

    assert [found["name"] for found in reply.json["spec"]["devices"]] == names


def test_a_json_pointer_escapes_slash_and_tilde(api: Client) -> None:
    api.post(SLICES, slice_document())
    labels = {"op": "add", "path": "/metadata/labels", "value": {}}

    path = "/metadata/labels/example.com~1a"
    reply = api.patch(SLICE, [labels, {"op": "add", "path": path, "value": "x"}], JSON_PATCH)

    assert reply.json["metadata"]["labels"] == {"example.com/a": "x"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/spec/nothing"},
        {"op": "replace", "path": "/spec/nothing/more", "value": 1},
        {"op": "test", "path": "/spec/nodeName", "value": "node-b"},
        {"op": "add", "path": "/spec/devices/9", "value": {}},
        {"op": "add", "path": "spec", "value": {}},
        {"op": "twist", "path": "/spec"},
        {"path": "/spec"},
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(api: Client, operation: Json) -> None:
    made = api.post(SLICES, slice_document()).json

    assert api.patch(SLICE, [operation], JSON_PATCH).code == 422
    assert api.get(SLICE).json == made


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        ("{", MERGE, 400),
        ("[]", MERGE, 400),
        ("{}", JSON_PATCH, 400),
        ("{}", "application/json", 415),
    ],
)
def test_a_patch_that_cannot_be_parsed_is_refused(
    api: Client, body: str, kind: str, code: int
) -> None:
    api.post(SLICES, slice_document())

    assert api.call("PATCH", SLICE, body, kind=kind).code == code


STATUS = f"{CLAIMS}/claim-a/status"


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
    other = SHARE.replace("1", "9")
    api.post(CLAIMS, claim_document())
    shares = allocation_document(result_document(), result_document(device="gpu-1", shareID=other))
    assert api.patch(STATUS, {"status": {"allocation": shares}}).code == 200
    return api


SECOND = device_status(device="gpu-1", shareID=SHARE.replace("1", "9"))


def stored_devices(api: Client) -> list[Json]:
    found: list[Json] = api.get(f"{CLAIMS}/claim-a").json["status"].get("devices", [])
    return found


def test_an_apply_merges_devices_by_driver_pool_device_and_share(allocated: Client) -> None:
    ready = device_status(conditions=[condition()], data={"a": 1})

    first = apply(allocated, STATUS, status(ready))
    second = apply(allocated, STATUS, status(SECOND), "fieldManager=other")

    assert first.code == second.code == 200
    assert stored_devices(allocated) == [ready, {**SECOND, "conditions": None}]
    assert "allocation" in second.json["status"]


def test_an_apply_to_a_status_sets_nothing_else(allocated: Client) -> None:
    body = status(device_status())
    body["metadata"]["labels"] = {"a": "b"}
    body["spec"] = {"devices": {"requests": []}}

    reply = apply(allocated, STATUS, body)

    assert reply.code == 200
    assert "labels" not in reply.json["metadata"]
    assert reply.json["spec"]["devices"]["requests"]


def test_an_apply_creates_a_missing_object_but_not_through_its_status(api: Client) -> None:
    assert apply(api, SLICE, slice_document()).code == 201
    assert apply(api, SLICE, slice_document()).code == 200
    assert apply(api, STATUS, status()).code == 404


def test_an_apply_may_be_yaml(api: Client) -> None:
    text = json.dumps(slice_document()).replace('"kind": "ResourceSlice", ', "")
    yaml = f"# a comment\n{{kind: ResourceSlice, {text[1:]}"

    assert api.call("PATCH", f"{SLICE}?fieldManager=m", yaml, kind=APPLY).code == 201


@pytest.mark.parametrize("validation", ["Strict", "Warn", "Ignore"])
def test_an_apply_of_an_unknown_field_is_refused_with_any_validation(
    api: Client, validation: str
) -> None:
    wrong = claim_document(requests=[{"name": "gpu", "exactlyy": {}}])

    query = f"fieldManager=kubectl&fieldValidation={validation}&force=false"
    refused = apply(api, f"{CLAIMS}/claim-a", wrong, query)

    assert refused.code == 500
    assert refused.message.endswith('unknown field "spec.devices.requests[0].exactlyy"')
    assert api.get(f"{CLAIMS}/claim-a").code == 404


def test_an_apply_needs_a_manager_a_kind_and_no_managed_fields(api: Client) -> None:
    untyped = slice_document()
    managed = slice_document()
    del untyped["kind"]
    managed["metadata"]["managedFields"] = [{}]

    assert apply(api, SLICE, slice_document(), "").causes == [
        ("fieldManager", "FieldValueRequired")
    ]
    assert apply(api, SLICE, untyped).message == "invalid object type: /, Kind="
    assert apply(api, SLICE, managed).message == "metadata.managedFields must be nil"


@pytest.mark.parametrize(("base", "code"), [("a-", 201), ("a.b-", 201), ("a.", 422), ("-", 422)])
def test_generate_name_may_end_in_a_dash_but_not_in_a_dot(
    api: Client, base: str, code: int
) -> None:
    wanted = slice_document()
    wanted["metadata"] = {"generateName": base}

    assert api.post(SLICES, wanted).code == code
