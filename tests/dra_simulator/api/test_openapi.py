"""OpenAPI v3 documents, which kubectl reads before it applies, patches and explains."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from dra_simulator.api.kinds import KINDS, Kind
from dra_simulator.api.patches import STRATEGIC_PATCH
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import Client, Json

GVK: Final = "x-kubernetes-group-version-kind"
SCHEMA: Final = "#/components/schemas/"


@pytest.fixture(scope="module")
def documents() -> dict[str, Json]:
    """The document of each group version by its path, fetched through the index."""
    with ApiServer(tensor_fusion=True) as server:
        api = Client(server.url)
        paths = api.get("/openapi/v3").json["paths"]
        found = {name: api.get(entry["serverRelativeURL"]).json for name, entry in paths.items()}
        api.close()
    return found


def document_of(documents: dict[str, Json], kind: Kind) -> Json:
    return documents[f"apis/{kind.group}/v1" if kind.group else "api/v1"]


def gvk(kind: Kind) -> Json:
    return {"group": kind.group, "version": "v1", "kind": kind.kind}


def test_the_index_names_every_group_version_with_a_hash_of_its_document() -> None:
    indices, codes = [], []
    for tensor_fusion in (False, True, True):
        with ApiServer(tensor_fusion=tensor_fusion) as server:
            api = Client(server.url)
            indices.append(api.get("/openapi/v3").json["paths"])
            codes.append(api.get("/openapi/v3/apis/apps/v1").code)
            api.close()

    assert set(indices[0]) == {
        "api/v1",
        "apis/admissionregistration.k8s.io/v1",
        "apis/events.k8s.io/v1",
        "apis/resource.k8s.io/v1",
    }
    assert indices[1].keys() - indices[0].keys() == {"apis/tensor-fusion.ai/v1"}
    assert indices[1] == indices[2]
    hashes = {entry["serverRelativeURL"].partition("?hash=")[2] for entry in indices[1].values()}
    assert len(hashes - {""}) == len(indices[1])
    assert set(codes) == {404}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.plural}")
def test_patches_of_every_kind_take_field_validation(
    documents: dict[str, Json], kind: Kind
) -> None:
    paths = document_of(documents, kind)["paths"]

    found = [
        path["patch"] for path in paths.values() if path.get("patch", {}).get(GVK) == gvk(kind)
    ]

    assert found
    for patch in found:
        parameters = {(entry["name"], entry["in"]) for entry in patch["parameters"]}
        assert ("fieldValidation", "query") in parameters
        assert (STRATEGIC_PATCH in patch["requestBody"]["content"]) is not kind.is_custom


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.plural}")
def test_every_kind_has_one_schema(documents: dict[str, Json], kind: Kind) -> None:
    document = document_of(documents, kind)
    schemas = document["components"]["schemas"].values()
    prefix = f"/apis/{kind.group}/v1" if kind.group else "/api/v1"

    (schema,) = [schema for schema in schemas if gvk(kind) in schema.get(GVK, [])]

    assert {"apiVersion", "kind", "metadata"} <= schema["properties"].keys()
    # kubectl explain looks for the kind under its path across namespaces.
    assert document["paths"][f"{prefix}/{kind.plural}"]["get"][GVK] == gvk(kind)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, entry in value.items():
            if name == "$ref":
                yield entry
            else:
                yield from references(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from references(entry)


def test_every_reference_leads_to_a_schema_of_the_same_document(
    documents: dict[str, Json],
) -> None:
    for document in documents.values():
        found = set(references(document))
        assert found
        assert found <= {SCHEMA + name for name in document["components"]["schemas"]}


def test_lists_declare_how_a_strategic_patch_merges_them(documents: dict[str, Json]) -> None:
    schemas = documents["api/v1"]["components"]["schemas"]
    core, meta = "io.k8s.api.core.v1", "io.k8s.apimachinery.pkg.apis.meta.v1"
    container = schemas[f"{core}.Container"]["properties"]
    metadata = schemas[f"{meta}.ObjectMeta"]["properties"]

    assert container["ports"]["x-kubernetes-patch-merge-key"] == "containerPort"
    assert container["ports"]["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
    assert container["ports"]["items"] == {"$ref": f"{SCHEMA}{core}.ContainerPort"}
    assert metadata["finalizers"]["x-kubernetes-patch-strategy"] == "merge"
    assert "x-kubernetes-patch-strategy" not in container["args"]


def test_fields_have_their_types(documents: dict[str, Json]) -> None:
    schemas = documents["apis/resource.k8s.io/v1"]["components"]["schemas"]
    device = schemas["io.k8s.api.resource.v1.Device"]["properties"]
    capacity = schemas["io.k8s.api.resource.v1.DeviceCapacity"]["properties"]
    event = document_of(documents, next(kind for kind in KINDS if kind.renamed))
    schema = event["components"]["schemas"]["io.k8s.api.events.v1.Event"]["properties"]

    assert device["name"] == {"type": "string"}
    assert device["allowMultipleAllocations"] == {"type": "boolean"}
    assert device["capacity"]["additionalProperties"]["$ref"].endswith(".DeviceCapacity")
    assert capacity["value"]["allOf"][0]["$ref"].endswith(".Quantity")
    assert "regarding" in schema
    assert "involvedObject" not in schema
