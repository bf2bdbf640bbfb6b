"""The server's schema compared with Kubernetes' own, by structs and by documents."""

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
from tests.dra_simulator.api.client import Json
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
