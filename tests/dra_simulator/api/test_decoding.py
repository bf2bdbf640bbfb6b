"""Decoding of bodies: the schema compared with Kubernetes' own, types, quantities and YAML."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import kubernetes_validate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_simulator.api.kinds import KINDS
from dra_simulator.api.schema import DecodeError, Schema, parsed
from dra_simulator.api.structs import KUBERNETES_NAMES, PACKAGES, STRUCTS
from tests.dra_simulator.api.client import CLAIMS, NODES, SLICES, Client, Json
from tests.support import kubernetes_schemas
from tests.support.builders.documents import (
    allocation_document,
    claim_document,
    class_document,
    condition,
    device_document,
    device_status,
    pod_with_claim,
    request_document,
    slice_document,
    template_document,
)
from tests.support.tally import examples


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


VERSION: Final = kubernetes_schemas.VERSION
SCHEMA: Final = Schema(STRUCTS)

SCALARS: Final = {
    "Quantity": "quantity",
    "Time": "time",
    "MicroTime": "microtime",
    "RawExtension": "raw",
    "FieldsV1": "raw",
}
COMPARED: Final = {
    struct: f"{package}.{KUBERNETES_NAMES.get(struct, struct)}"
    for package, structs in PACKAGES.items()
    for struct in structs
    if package not in {"io.k8s.api.admissionregistration.v1", "ai.tensor-fusion.v1"}
}
"""The structs that have Kubernetes' fields and names, with their full names."""
TYPES: Final = {"string": "string", "integer": "int", "boolean": "bool"}


@pytest.fixture(scope="module")
def definitions() -> dict[str, Json]:
    """Kubernetes' structs by their full names."""
    path = f"kubernetes-json-schema/v{VERSION}.0-local-strict/_definitions.json"
    found: dict[str, Json] = kubernetes_schemas.contents(path, VERSION)["$defs"]
    return found


def kubernetes_type(schema: Json) -> str:
    """Return a field's type in the notation of our schema."""
    if "$ref" in schema:
        name: str = schema["$ref"].rpartition(".")[2]
        ours = {theirs: mine for mine, theirs in KUBERNETES_NAMES.items()}
        return SCALARS.get(name, name if name not in ours else f"{name}?")
    (kind,) = set(schema["type"] if isinstance(schema["type"], list) else [schema["type"]]) - {
        "null"
    }
    if kind == "array":
        keys = ",".join(schema.get("x-kubernetes-list-map-keys", []))
        merge_key = schema.get("x-kubernetes-patch-merge-key", "")
        merged = "merge" in schema.get("x-kubernetes-patch-strategy", "").split(",")
        mark = "+" if merged and keys.split(",")[0] == merge_key else ""
        return f"[{mark}{keys}]{kubernetes_type(schema['items'])}"
    if kind == "object":
        return "{}" + kubernetes_type(schema["additionalProperties"])
    return TYPES[kind]


def our_type(text: str) -> str:
    base = parsed(text).base
    return text.removeprefix("*").replace(
        base, f"{KUBERNETES_NAMES[base]}?" if base in KUBERNETES_NAMES else base
    )


@pytest.mark.parametrize("struct", COMPARED)
def test_every_struct_has_the_fields_and_types_of_kubernetes(
    struct: str, definitions: dict[str, Json]
) -> None:
    theirs = definitions[COMPARED[struct]]["properties"]
    ours = {name.rstrip("!"): text for name, text in SCHEMA.structs[struct].items()}
    elsewhere = {"apiVersion", "kind"} if "metadata" in ours else set()

    found = {name: our_type(text) for name, text in ours.items()}

    unchecked = {name for name, text in found.items() if text.endswith("raw")}
    assert {name: text for name, text in found.items() if name not in unchecked} == {
        name: kubernetes_type(schema)
        for name, schema in theirs.items()
        if name not in elsewhere | unchecked
    }
    assert unchecked <= theirs.keys()


def full_slice() -> Json:
    taint = {"key": "a", "value": "b", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    return slice_document(
        devices=[
            device_document(
                taints=[taint],
                consumesCounters=[{"counterSet": "c", "counters": {"m": {"value": "1"}}}],
                bindsToNode=True,
                bindingConditions=["a"],
                bindingFailureConditions=["b"],
            )
        ]
    )


def full_claim() -> Json:
    toleration = {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}
    selectors = [{"cel": {"expression": "true"}}]
    document = claim_document(
        requests=[
            request_document(
                selectors=selectors,
                count=1,
                tolerations=[{**toleration, "tolerationSeconds": 5}],
                capacity={"requests": {"vram": "1Gi"}},
            ),
            {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "c"}]},
        ],
        constraints=[{"requests": ["gpu"], "matchAttribute": "a.b/c"}],
        config=[{"requests": ["gpu"], "opaque": {"driver": "d", "parameters": {"a": 1}}}],
    )
    config = [{"source": "FromClaim", "opaque": {"driver": "d", "parameters": {}}}]
    document["status"] = {
        "allocation": allocation_document(config=config),
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [
            device_status(
                conditions=[condition()], data={"a": 1}, networkData={"ips": ["10.0.0.1/8"]}
            )
        ],
    }
    return document


ACCEPTED: Final = {
    "slice": full_slice(),
    "claim": full_claim(),
    "template": template_document(labels={"a": "b"}),
    "class": class_document(extendedResourceName="example.com/gpu"),
    "pod": pod_with_claim(),
    "node": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {}},
}

REFUSED: Final = {
    "stringValue": slice_document(
        devices=[{"name": "a", "attributes": {"m": {"stringValue": ""}}}]
    ),
    "basic": slice_document(devices=[{"name": "a", "basic": {}}]),
    "policy": slice_document(
        devices=[{"name": "a", "capacity": {"v": {"value": "1", "policy": {}}}}]
    ),
    "selector": claim_document(
        requests=[request_document(selector={"cel": {"expression": "true"}})]
    ),
    "mode": claim_document(requests=[{**request_document(), "allocationMode": "ExactCount"}]),
    "class on request": claim_document(requests=[{"name": "gpu", "deviceClassName": "c"}]),
    "count as text": claim_document(requests=[request_document(count="1")]),
    "flag as text": slice_document(allNodes="true"),
    "number as name": slice_document(driver=5),
    "list as map": slice_document(devices={"a": {}}),
    "claim of a pod": pod_with_claim(resourceClaims=[{"name": "gpu", "source": {}}]),
}


def decodes(document: Json) -> bool:
    """Return True if a strict write accepts the document."""
    struct = next(kind.struct for kind in KINDS if kind.kind == document["kind"])
    fields = {name: value for name, value in document.items() if name not in {"kind", "apiVersion"}}
    try:
        return not SCHEMA.decode(struct, fields)[1]
    except DecodeError:
        return False


def kubernetes_accepts(document: Json) -> bool:
    """Return True if Kubernetes' strict schema accepts the document."""
    try:
        kubernetes_schemas.check(document)
    except kubernetes_validate.ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", ACCEPTED)
def test_documents_that_kubernetes_accepts_are_accepted(name: str) -> None:
    assert kubernetes_accepts(ACCEPTED[name])
    assert decodes(ACCEPTED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_documents_that_kubernetes_refuses_are_refused(name: str) -> None:
    assert not kubernetes_accepts(REFUSED[name])
    assert not decodes(REFUSED[name])


def objects(value: object) -> Iterator[dict[str, Any]]:
    """Yield every JSON object in a document."""
    if isinstance(value, Mapping):
        assert isinstance(value, dict)
        yield value
        for entry in value.values():
            yield from objects(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from objects(entry)


# Kubernetes' schema states neither the format of times nor that raw JSON may hold anything.
NOT_COMPARED: Final = frozenset({"timeAdded", "lastTransitionTime", "parameters", "data"})


@settings(max_examples=examples(40))
@given(data=st.data())
def test_an_added_field_is_accepted_exactly_if_kubernetes_accepts_it(data: st.DataObject) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from([full_slice(), full_claim()])))
    place = data.draw(st.sampled_from(list(objects(document))))
    name = data.draw(st.sampled_from(["name", "spec", "value", "capacity", "unknownField"]))
    place.setdefault(name, data.draw(st.sampled_from(["1", 1, True, []])))

    assert decodes(document) == kubernetes_accepts(document)


@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_value_of_another_type_is_accepted_exactly_if_kubernetes_accepts_it(
    data: st.DataObject,
) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from([full_slice(), full_claim()])))
    places = [place for place in objects(document["spec"]) if place.keys() - NOT_COMPARED]
    place = data.draw(st.sampled_from(places))
    name = data.draw(st.sampled_from(sorted(place.keys() - NOT_COMPARED)))
    place[name] = data.draw(st.sampled_from(["1", 1, True, [1], {"a": 1}]))

    assert decodes(document) == kubernetes_accepts(document)


def test_a_refusal_carries_the_warnings_as_well(api: Client) -> None:
    wrong = slice_document()
    wrong["spec"]["devices"][0]["attributes"]["model"] = {"stringValue": "A100"}

    reply = api.post(SLICES, wrong)

    assert reply.causes == [("spec.devices[0].attributes[model]", "FieldValueInvalid")]
    assert "exactly one value must be specified" in reply.message
    assert "stringValue" in reply.headers["warning"][0]
