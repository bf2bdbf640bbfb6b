"""Merge, strategic merge and JSON patches."""

import pytest

from tests.dra_simulator.api.client import (
    JSON_PATCH,
    MERGE,
    PODS,
    SLICES,
    STRATEGIC,
    Client,
    Json,
)
from tests.support.builders.documents import pod_with_claim, slice_document

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
    assert kind.causes == strict.causes == [("patch", "FieldValueInvalid")]
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
