"""The examples are valid for Kubernetes and behave as the guide describes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import (
    CLASSES,
    GPUPOOLS,
    PODS,
    SCHEDULING_CONFIG_TEMPLATES,
    TEMPLATES,
    Client,
    Resource,
)
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.cel import dialect
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tensorfusion_dra.scheduling import allocation, cel_evaluation
from tests.support import installation, kubernetes_schemas
from tests.support.builders.slices import stored_slices

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "hack" / "examples").glob("*.yaml"))
MANIFESTS = [ROOT / "daemonset" / "claim-template.yaml"]
LLM_D = ROOT / "hack" / "examples" / "helm" / "llm-d-modelservice.yaml"
NAMESPACES = Resource(api_version="v1", plural="namespaces", kind="Namespace", namespaced=False)
KINDS = {
    resource.kind: resource
    for resource in (CLASSES, GPUPOOLS, NAMESPACES, PODS, SCHEDULING_CONFIG_TEMPLATES, TEMPLATES)
}

Json = dict[str, Any]


def documents(file: Path) -> list[Json]:
    return list(yaml.safe_load_all(file.read_text()))


def definition(kind: str) -> Json:
    """Return the schema in the CustomResourceDefinition of a kind."""
    for file in (ROOT / "daemonset" / "chart" / "tensor-fusion-crds").iterdir():
        found = yaml.safe_load(file.read_text())
        if found["spec"]["names"]["kind"] == kind:
            schema: Json = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            return schema
    raise KeyError(kind)


@pytest.fixture
def client() -> Iterator[Client]:
    with ApiServer(tensor_fusion=True, check_expression=cel_evaluation.check_expression) as server:
        yield Client(server.url)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_is_valid_for_kubernetes(file: Path) -> None:
    found = documents(file)

    assert found
    for document in found:
        if document["apiVersion"].startswith(f"{names.TENSOR_FUSION_GROUP}/"):
            jsonschema.validate(document, definition(document["kind"]))
        else:
            kubernetes_schemas.check(document)


@pytest.mark.parametrize("file", [*EXAMPLES, *MANIFESTS], ids=lambda file: file.name)
def test_strict_api_server_accepts_every_example(file: Path, client: Client) -> None:
    for document in documents(file):
        resource = KINDS[document["kind"]]
        if resource.namespaced:
            document["metadata"].setdefault("namespace", "default")

        assert client.create(resource, document)["metadata"]["uid"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_annotations_of_every_example_are_valid(file: Path) -> None:
    for document in documents(file):
        if document["kind"] == "Pod":
            errors = list[FieldError]()
            pod_request.parse(document["metadata"].get("annotations", {}), errors)
            assert errors == []


def test_templates_in_examples_equal_the_shipped_one() -> None:
    """A different one with the same name could not be applied: a template's spec is immutable."""
    (shipped,) = documents(MANIFESTS[0])
    found = [
        document
        for file in EXAMPLES
        for document in documents(file)
        if document["metadata"]["name"] == names.CLAIM_TEMPLATE
    ]

    assert len(found) == 2
    assert all(document["spec"] == shipped["spec"] for document in found)


def test_selectors_in_examples_need_no_translation() -> None:
    for document in documents(ROOT / "hack" / "examples" / "guide-selectors.yaml"):
        (request,) = document["spec"]["spec"]["devices"]["requests"]
        (selector,) = request["exactly"]["selectors"]
        expression = selector["cel"]["expression"]
        assert dialect.translate(expression) == expression


def test_admin_access_example_gets_cards_in_use_because_it_names_amounts() -> None:
    _, template, _ = documents(ROOT / "hack" / "examples" / "admin-access.yaml")
    spec = template["spec"]["spec"]
    user = share_of(stored_slices(2)[0]["spec"]["devices"][0]["name"])

    seen = devices_for(spec, existing=user)
    del spec["devices"]["requests"][0]["exactly"]["capacity"]
    without_amounts = devices_for(spec, existing=user)

    assert (len(seen), len(without_amounts)) == (2, 1)


def share_of(device: str) -> Json:
    """Return a claim with a share of a device."""
    result = {
        "driver": names.DRIVER,
        "pool": stored_slices(1)[0]["spec"]["pool"]["name"],
        "device": device,
        "shareID": "5a5a5a5a-0000-4000-8000-000000000001",
        "consumedCapacity": {"tflops": "100", "vram": "16Gi"},
    }
    allocated = {"devices": {"results": [result]}}
    return {"metadata": {"name": "user"}, "spec": {}, "status": {"allocation": allocated}}


def devices_for(spec: Json, *, existing: Json) -> list[str]:
    """Return the devices that the scheduler allocates to a claim on node-01, which has two."""
    (device_class,) = (
        each for each in installation.documents("nvidia") if each["kind"] == "DeviceClass"
    )
    cluster = allocation.cluster(slices=stored_slices(2), classes=[device_class], claims=[existing])
    claim = {"metadata": {"namespace": "default", "name": "claim"}, "spec": spec}
    node = {"metadata": {"name": "node-01"}}
    (found,) = allocation.allocate([claim], cluster, node)
    return [result["device"] for result in found["devices"]["results"]]


def rendered(block: Json, name: str) -> Json:
    """Return the template that the chart llm-d-modelservice renders from an entry."""
    wanted = {"deviceClassName": block["class"], "count": block["count"]}
    request = {"name": name, block["match"]: {**wanted, "selectors": block["selectors"]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"{name}-claim-template", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def test_llm_d_values_give_a_template_of_our_device_class(client: Client) -> None:
    (values,) = documents(LLM_D)
    old, new = values["dra"], values["accelerator"]
    (entry,) = (each for each in old["claimTemplates"] if each["name"] == old["type"])
    blocks = {old["type"]: entry, new["type"]: new["resourceClaimTemplates"][new["type"]]}

    for name, block in blocks.items():
        assert list(name_rules.label("", name)) == []
        stored = client.create(TEMPLATES, rendered(block, name))
        exactly = stored["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        assert exactly["deviceClassName"] == names.DEVICE_CLASS
        assert exactly["count"] == 2
