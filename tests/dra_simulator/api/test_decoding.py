"""Decoding of bodies: unknown fields, types, quantities, and the guide's YAML."""

import json

import pytest

from tests.dra_simulator.api.client import CLAIMS, NODES, SLICES, Client, Json
from tests.support.builders.documents import (
    claim_document,
    device_document,
    request_document,
    slice_document,
)


def test_a_strict_write_with_unknown_fields_is_refused_with_their_paths(api: Client) -> None:
    wrong = slice_document(foo=1)
    wrong["spec"]["devices"][0]["attributes"]["model"] = {"stringValue": "A100"}

    reply = api.post(f"{SLICES}?fieldValidation=Strict", wrong)

    assert reply.code == 400
    assert reply.message == (
        'ResourceSlice in version "v1" cannot be handled as a ResourceSlice: strict decoding error:'
        ' unknown field "spec.devices[0].attributes.model.stringValue", unknown field "spec.foo"'
    )


@pytest.mark.parametrize("query", ["", "?fieldValidation=Warn"])
def test_without_strict_validation_unknown_fields_are_dropped_with_a_warning(
    api: Client, query: str
) -> None:
    reply = api.post(f"{SLICES}{query}", slice_document(foo=1))

    assert reply.code == 201
    assert "foo" not in reply.json["spec"]
    assert reply.headers["warning"] == ['299 - "unknown field \\"spec.foo\\""']


def test_unknown_fields_can_be_ignored_silently(api: Client) -> None:
    reply = api.post(f"{SLICES}?fieldValidation=Ignore", slice_document(foo=1))

    assert reply.code == 201
    assert "warning" not in reply.headers


def test_a_strict_write_refuses_a_field_that_occurs_twice(api: Client) -> None:
    text = json.dumps(slice_document()).replace('"driver":', '"driver": "a", "driver":')

    reply = api.call("POST", f"{SLICES}?fieldValidation=Strict", text)

    assert reply.message.endswith('strict decoding error: duplicate field "spec.driver"')


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"driver": 5}, "cannot unmarshal number into Go struct field spec.driver of type string"),
        ({"devices": {}}, "cannot unmarshal object into Go struct field spec.devices of type []"),
        (
            {"allNodes": "yes"},
            "cannot unmarshal string into Go struct field spec.allNodes of type bool",
        ),
        ({"pool": {"generation": "1"}}, "field spec.pool.generation of type int64"),
        ({"pool": {"generation": True}}, "field spec.pool.generation of type int64"),
        ({"pool": {"generation": 2**63}}, "field spec.pool.generation of type int64"),
        ({"pool": []}, "cannot unmarshal array into Go struct field spec.pool"),
        ({"devices": [{"capacity": {"vram": {"value": "1 Gi"}}}]}, "quantities must match"),
        ({"devices": [{"capacity": {"vram": {"value": True}}}]}, "quantities must match"),
        ({"devices": [{"capacity": {"vram": {"value": "1\n"}}}]}, "quantities must match"),
        ({"devices": [{"capacity": {"vram": {"value": "  "}}}]}, "quantities must match"),
        ({"devices": [{"taints": [{"timeAdded": "today"}]}]}, 'parsing time "today"'),
        ({"devices": [{"taints": [{"timeAdded": "2026-13-01T00:00:00Z"}]}]}, "parsing time"),
    ],
)
def test_a_value_of_another_type_is_a_bad_request(api: Client, spec: Json, text: str) -> None:
    reply = api.post(SLICES, slice_document(**spec))

    assert (reply.code, reply.json["reason"]) == (400, "BadRequest")
    assert text in reply.message


@pytest.mark.parametrize("body", ["", "{", "[]", '"text"'])
def test_a_body_that_is_not_an_object_is_a_bad_request(api: Client, body: str) -> None:
    assert api.call("POST", SLICES, body).code == 400


def test_a_body_of_another_kind_or_version_is_a_bad_request(api: Client) -> None:
    kind, version = slice_document(), slice_document()
    kind["kind"] = "Slice"
    version["apiVersion"] = "resource.k8s.io/v1beta2"

    assert 'no kind "Slice" is registered' in api.post(SLICES, kind).message
    assert "does not match the expected API version" in api.post(SLICES, version).message


def test_a_body_may_be_yaml_or_lack_its_kind(api: Client) -> None:
    bare = slice_document()
    del bare["kind"], bare["apiVersion"]
    yaml = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n"

    assert api.post(SLICES, bare).json["kind"] == "ResourceSlice"
    assert api.call("POST", NODES, yaml, kind="application/yaml").code == 201
    assert api.call("POST", NODES, yaml, kind="text/html").code == 415


def test_a_protobuf_body_is_refused(api: Client) -> None:
    envelope = "k8s\0\n\x02v1"

    refused = api.call("POST", NODES, envelope, kind="application/vnd.kubernetes.protobuf")

    assert (refused.code, refused.json["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("1024Mi", "1Gi"),
        ("0.5", "500m"),
        ("1000", "1k"),
        ("20000000001", "20000000001"),
        (5, "5"),
        (0.5, "500m"),
        ("1e3", "1e3"),
        (" 1", "1"),
        ("\u2003 1Gi \xa0", "1Gi"),
        (None, "0"),
    ],
)
def test_quantities_are_stored_in_canonical_form(
    api: Client, sent: str | float | None, stored: str
) -> None:
    made = api.post(
        SLICES, slice_document(devices=[device_document(capacity={"vram": {"value": sent}})])
    )

    assert made.json["spec"]["devices"][0]["capacity"]["vram"]["value"] == stored


def test_times_are_stored_in_utc_and_whole_seconds(api: Client) -> None:
    taint = {"key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-01T01:00:00.9+01:00"}

    made = api.post(SLICES, slice_document(devices=[device_document(taints=[taint])]))

    assert made.json["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


def test_null_and_empty_fields_are_left_out_unless_required(api: Client) -> None:
    empty = claim_document(requests=[], constraints=[], config=None)

    made = api.post(CLAIMS, empty).json

    assert made["spec"] == {"devices": {"requests": None}}
    assert made["status"] == {}


def test_the_zero_value_of_an_optional_attribute_is_kept(api: Client) -> None:
    attributes = {"a": {"string": ""}, "b": {"bool": False}, "c": {"int": 0}}

    made = api.post(SLICES, slice_document(devices=[device_document(attributes=attributes)]))

    assert made.json["spec"]["devices"][0]["attributes"] == attributes


def test_requests_get_the_default_mode_and_count(api: Client) -> None:
    tolerations = [{"key": "a"}]
    wanted = claim_document(
        requests=[
            request_document(tolerations=tolerations),
            request_document("all", allocationMode="All"),
        ]
    )

    made = api.post(CLAIMS, wanted).json["spec"]["devices"]["requests"]

    assert made[0]["exactly"]["allocationMode"] == "ExactCount"
    assert made[0]["exactly"]["count"] == 1
    assert made[0]["exactly"]["tolerations"] == [{"key": "a", "operator": "Equal"}]
    assert "count" not in made[1]["exactly"]
