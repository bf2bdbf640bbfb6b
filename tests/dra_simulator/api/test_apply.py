"""Server-side apply: what it merges, and what it removes."""

import json

import pytest

from tests.dra_simulator.api.client import APPLY, CLAIMS, SLICES, Client, Json, Reply
from tests.support.builders.documents import (
    SHARE,
    allocation_document,
    claim_document,
    condition,
    device_status,
    result_document,
    slice_document,
)

SLICE = f"{SLICES}/slice-a"
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


def test_an_apply_removes_fields_that_its_manager_no_longer_applies(allocated: Client) -> None:
    apply(allocated, STATUS, status(device_status(data={"a": 1}), SECOND))
    apply(allocated, STATUS, status(SECOND), "fieldManager=other&force=true")

    without_data = apply(allocated, STATUS, status(device_status()))
    without_all = apply(allocated, STATUS, status())
    by_the_other = apply(allocated, STATUS, status(), "fieldManager=other")

    assert [found.get("data") for found in without_data.json["status"]["devices"]] == [None, None]
    assert [found["device"] for found in without_all.json["status"]["devices"]] == ["gpu-1"]
    assert "devices" not in by_the_other.json["status"]


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
