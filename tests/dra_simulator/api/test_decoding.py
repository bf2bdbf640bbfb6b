"""Decoding of bodies: the schema compared with Kubernetes' own, types, quantities and YAML."""

from typing import Final

import pytest

from dra_simulator.api.schema import Schema, parsed
from dra_simulator.api.structs import KUBERNETES_NAMES, PACKAGES, STRUCTS
from tests.dra_simulator.api.client import CLAIMS, NODES, SLICES, Client, Json
from tests.support import kubernetes_schemas
from tests.support.builders.documents import (
    claim_document,
    device_document,
    request_document,
    slice_document,
)


def test_a_strict_write_with_unknown_fields_is_refused_with_their_paths(api: Client) -> None:
    device = device_document(attributes={"model": {"stringValue": "A100"}})

    reply = api.post(f"{SLICES}?fieldValidation=Strict", slice_document(foo=1, devices=[device]))

    assert (reply.code, reply.message) == (
        400,
        'ResourceSlice in version "v1" cannot be handled as a ResourceSlice: strict decoding error:'
        ' unknown field "spec.devices[0].attributes.model.stringValue", unknown field "spec.foo"',
    )


@pytest.mark.parametrize(
    ("query", "warnings"),
    [
        ("", ['299 - "unknown field \\"spec.foo\\""']),
        ("?fieldValidation=Warn", ['299 - "unknown field \\"spec.foo\\""']),
        ("?fieldValidation=Ignore", []),
    ],
)
def test_without_strict_validation_unknown_fields_are_dropped(
    api: Client, query: str, warnings: list[str]
) -> None:
    reply = api.post(f"{SLICES}{query}", slice_document(foo=1))

    assert reply.json["spec"] == slice_document()["spec"]
    assert reply.warnings == warnings


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
        ({"devices": [{"attributes": []}]}, "of type map[string]DeviceAttribute"),
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


JSON: Final = "application/json"
NODE: Final = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n"

TAINT: Final = {"key": "a", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("body", "kind", "code", "text"),
    [
        ("", JSON, 400, "couldn't get version/kind"),
        ("{", JSON, 400, "json parse error"),
        ("[]", JSON, 400, "expected an object"),
        ('"text"', JSON, 400, "expected an object"),
        ({"kind": "Knot"}, JSON, 400, 'no kind "Knot" is registered'),
        ({"apiVersion": "v2"}, JSON, 400, "does not match the expected API version"),
        (NODE, "text/html", 415, "unknown format"),
        ("k8s\0\n\x02v1", "application/vnd.kubernetes.protobuf", 415, "unknown format"),
    ],
)
def test_a_body_that_is_no_object_of_its_kind_is_refused(
    api: Client, body: object, kind: str, code: int, text: str
) -> None:
    reply = api.call("POST", NODES, body, kind=kind)

    assert reply.code == code
    assert text in reply.message


def test_a_body_may_be_yaml_or_lack_its_kind(api: Client) -> None:
    yaml = api.call("POST", NODES, NODE, kind="application/yaml")
    bare = api.post(NODES, {"metadata": {"name": "node-b"}})

    assert [reply.json["kind"] for reply in (yaml, bare)] == ["Node", "Node"]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        *(
            ({"capacity": {"vram": {"value": sent}}}, {"capacity": {"vram": {"value": stored}}})
            for sent, stored in (
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
            )
        ),
        # Times are in UTC and of whole seconds.
        (
            {"taints": [{**TAINT, "timeAdded": "2026-01-01T01:00:00.9+01:00"}]},
            {"taints": [{**TAINT, "timeAdded": "2026-01-01T00:00:00Z"}]},
        ),
        # The zero value of an optional field is kept.
        *[({"attributes": {"a": {"string": ""}, "b": {"bool": False}, "c": {"int": 0}}},) * 2],
    ],
)
def test_a_device_is_stored_in_canonical_form(api: Client, sent: Json, stored: Json) -> None:
    made = api.post(SLICES, slice_document(devices=[device_document(**sent)])).json

    assert made["spec"]["devices"] == [device_document(**stored)]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({"requests": [], "constraints": [], "config": None}, {"requests": None}),
        (
            {"requests": [request_document(tolerations=[{"key": "a"}])]},
            {
                "requests": [
                    request_document(
                        allocationMode="ExactCount",
                        count=1,
                        tolerations=[{"key": "a", "operator": "Equal"}],
                    )
                ]
            },
        ),
        *[({"requests": [request_document(allocationMode="All")]},) * 2],
    ],
)
def test_a_claim_is_stored_with_defaults_and_without_empty_fields(
    api: Client, sent: Json, stored: Json
) -> None:
    made = api.post(CLAIMS, claim_document(**sent)).json

    assert (made["spec"], made["status"]) == ({"devices": stored}, {})


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
    ours = {name.rstrip("!"): our_type(text) for name, text in SCHEMA.structs[struct].items()}
    elsewhere = {"apiVersion", "kind"} if "metadata" in ours else set()
    unchecked = {name for name, text in ours.items() if text.endswith("raw")}

    assert {name: text for name, text in ours.items() if name not in unchecked} == {
        name: kubernetes_type(schema)
        for name, schema in theirs.items()
        if name not in elsewhere | unchecked
    }
    assert unchecked <= theirs.keys()


# Kubernetes' schema states neither the format of times nor that raw JSON may hold anything.
