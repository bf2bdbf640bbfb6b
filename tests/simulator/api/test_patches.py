"""The kinds of PATCH, server-side apply among them."""

import json

import pytest

from tests.simulator.api.client import (
    APPLY,
    CLAIMS,
    JSON_PATCH,
    MERGE,
    SHARE,
    SLICES,
    STRATEGIC,
    Client,
    Json,
    Reply,
    allocation,
    claim,
    condition,
    device,
    device_status,
    resource_slice,
    result,
)

SLICE = f"{SLICES}/slice-a"
STATUS = f"{CLAIMS}/claim-a/status"


def test_a_merge_patch_sets_fields_and_null_removes_them(api: Client) -> None:
    api.post(SLICES, resource_slice())

    api.patch(SLICE, {"metadata": {"labels": {"a": "1", "b": "2"}}})
    patched = api.patch(SLICE, {"metadata": {"labels": {"a": None}}, "spec": {"devices": None}})

    assert patched.json["metadata"]["labels"] == {"b": "2"}
    assert "devices" not in patched.json["spec"]
    assert patched.json["metadata"]["generation"] == 2


def test_a_patch_needs_its_object_and_the_version_it_names(api: Client) -> None:
    api.post(SLICES, resource_slice())

    missing = api.patch(f"{SLICES}/nope", {})
    stale = api.patch(SLICE, {"metadata": {"resourceVersion": "1"}})
    renamed = api.patch(SLICE, {"metadata": {"name": "other"}})

    assert (missing.code, stale.code, renamed.code) == (404, 409, 400)


def test_what_a_patch_makes_is_checked(api: Client) -> None:
    api.post(SLICES, resource_slice())

    rule = api.patch(SLICE, {"spec": {"driver": ""}})
    kind = api.patch(SLICE, {"spec": {"devices": "none"}})
    strict = api.patch(f"{SLICE}?fieldValidation=Strict", {"spec": {"foo": 1}})
    warned = api.patch(SLICE, {"spec": {"foo": 1}})

    assert ("spec.driver", "FieldValueRequired") in rule.causes
    assert kind.causes == strict.causes == [("patch", "FieldValueInvalid")]
    assert 'strict decoding error: unknown field "spec.foo"' in strict.message
    assert (warned.code, len(warned.headers["warning"])) == (200, 1)


def test_a_strategic_patch_merges_the_lists_that_have_a_key(api: Client) -> None:
    made = resource_slice()
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
def test_a_json_patch_does_its_operations_in_order(
    api: Client, operations: list[Json], names: list[str]
) -> None:
    api.post(SLICES, resource_slice(devices=[{"name": "a"}, {"name": "b"}]))

    reply = api.patch(SLICE, operations, JSON_PATCH)

    assert [found["name"] for found in reply.json["spec"]["devices"]] == names


def test_a_json_pointer_escapes_slash_and_tilde(api: Client) -> None:
    api.post(SLICES, resource_slice())
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
    made = api.post(SLICES, resource_slice()).json

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
def test_a_patch_that_cannot_be_read_is_refused(
    api: Client, body: str, kind: str, code: int
) -> None:
    api.post(SLICES, resource_slice())

    assert api.call("PATCH", SLICE, body, kind=kind).code == code


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
    """A claim with two shares."""
    other = SHARE.replace("1", "9")
    api.post(CLAIMS, claim())
    shares = allocation(result(), result(device="gpu-1", shareID=other))
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


def test_an_apply_takes_away_what_its_manager_no_longer_applies(allocated: Client) -> None:
    apply(allocated, STATUS, status(device_status(data={"a": 1}), SECOND))
    apply(allocated, STATUS, status(SECOND), "fieldManager=other&force=true")

    without_data = apply(allocated, STATUS, status(device_status()))
    without_all = apply(allocated, STATUS, status())
    by_the_other = apply(allocated, STATUS, status(), "fieldManager=other")

    assert [found.get("data") for found in without_data.json["status"]["devices"]] == [None, None]
    assert [found["device"] for found in without_all.json["status"]["devices"]] == ["gpu-1"]
    assert "devices" not in by_the_other.json["status"]


def test_the_same_apply_again_changes_nothing(allocated: Client) -> None:
    first = apply(allocated, STATUS, status(device_status()))

    assert apply(allocated, STATUS, status(device_status())).json == first.json


def test_an_apply_takes_a_field_from_another_manager_only_by_force(allocated: Client) -> None:
    apply(allocated, STATUS, status(device_status(conditions=[condition()])))
    wanted = status(device_status(conditions=[condition(status="False")]))

    refused = apply(allocated, STATUS, wanted, "fieldManager=other")
    forced = apply(allocated, STATUS, wanted, "fieldManager=other&force=true")
    back = apply(allocated, STATUS, status(device_status(conditions=[condition()])))

    path = (
        '.status.devices[device="gpu-0",driver="tensor-fusion.ai.dra-driver",'
        f'pool="pool-a/node-a",shareID="{SHARE}"].conditions[type="Ready"].status'
    )
    assert (refused.code, refused.json["reason"]) == (409, "Conflict")
    assert refused.message == (
        f'Apply failed with 1 conflict: conflict with "driver" with subresource "status": {path}'
    )
    assert refused.causes == [(path, "FieldManagerConflict")]
    assert forced.json["status"]["devices"][0]["conditions"][0]["status"] == "False"
    assert 'conflict with "other"' in back.message


def test_an_apply_meets_fields_that_were_set_by_an_update(api: Client) -> None:
    api.post(f"{SLICES}?fieldManager=publisher", resource_slice())

    wanted = resource_slice(devices=[device("gpu-1")])
    wanted["spec"]["pool"]["generation"] = 2
    reply = apply(api, SLICE, wanted)

    assert reply.message == (
        'Apply failed with 2 conflicts: conflicts with "publisher":\n- .spec.devices\n'
        "- .spec.pool.generation"
    )


def test_an_update_takes_the_fields_that_it_changes(allocated: Client) -> None:
    apply(allocated, STATUS, status(device_status(data={"a": 1})))
    allocated.patch(STATUS, {"status": {"devices": [device_status(data={"a": 2})]}})

    reply = apply(allocated, STATUS, status(device_status(data={"a": 1})))

    assert 'conflict with "tests" with subresource "status"' in reply.message


def test_an_apply_to_a_status_sets_nothing_else(allocated: Client) -> None:
    body = status(device_status())
    body["metadata"]["labels"] = {"a": "b"}
    body["spec"] = {"devices": {"requests": []}}

    reply = apply(allocated, STATUS, body)

    assert reply.code == 200
    assert "labels" not in reply.json["metadata"]
    assert reply.json["spec"]["devices"]["requests"]


def test_an_apply_creates_what_is_not_there_but_no_status(api: Client) -> None:
    assert apply(api, SLICE, resource_slice()).code == 201
    assert apply(api, SLICE, resource_slice()).code == 200
    assert apply(api, STATUS, status()).code == 404


def test_an_apply_may_be_yaml(api: Client) -> None:
    text = json.dumps(resource_slice()).replace('"kind": "ResourceSlice", ', "")
    yaml = f"# a comment\n{{kind: ResourceSlice, {text[1:]}"

    assert api.call("PATCH", f"{SLICE}?fieldManager=m", yaml, kind=APPLY).code == 201


def test_an_apply_needs_a_manager_a_kind_and_no_managed_fields(api: Client) -> None:
    untyped = resource_slice()
    managed = resource_slice()
    del untyped["kind"]
    managed["metadata"]["managedFields"] = [{}]

    assert apply(api, SLICE, resource_slice(), "").causes == [
        ("fieldManager", "FieldValueRequired")
    ]
    assert apply(api, SLICE, untyped).message == "invalid object type: /, Kind="
    assert apply(api, SLICE, managed).message == "metadata.managedFields must be nil"
