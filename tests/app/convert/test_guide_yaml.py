"""Every YAML of the user guide: the API server refuses it as it is and accepts it converted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import (
    CLAIMS,
    CLASSES,
    GPUPOOLS,
    NODES,
    PODS,
    TEMPLATES,
    ApiError,
    Client,
)
from tensorfusion_dra.app.convert.convert import convert
from tensorfusion_dra.core.cel.dialect import translate
from tensorfusion_dra.scheduling import cel_evaluation

FOLDER = Path(__file__).parent / "guide"
REFUSED = ("4.1.1-fragment", "6.2.1-slice")
"""A key that is set twice, and a slice, which the node plugin publishes itself."""
FILES = [file for file in sorted(FOLDER.glob("*.yaml")) if file.stem not in REFUSED]
OURS = [file for file in FILES if "resource.k8s.io" in file.read_text()]
UNCHANGED = [
    file for file in FILES if file not in OURS and "dra-cel-expression" not in file.read_text()
]
RESOURCES = {
    "Pod": PODS,
    "ResourceClaim": CLAIMS,
    "ResourceClaimTemplate": TEMPLATES,
    "DeviceClass": CLASSES,
    "GPUPool": GPUPOOLS,
}
Json = dict[str, Any]


@pytest.fixture
def client() -> Iterator[Client]:
    with ApiServer(tensor_fusion=True, check_expression=cel_evaluation.check_expression) as server:
        found = Client(server.url)
        found.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}})
        yield found


def apply(client: Client, text: str) -> list[Json]:
    """Create all objects of a text and return them as stored."""
    stored = []
    for document in yaml.safe_load_all(text):
        resource = RESOURCES.get(document.get("kind"))
        if resource is not None:
            if document["kind"] in ("Pod", "ResourceClaim", "ResourceClaimTemplate"):
                document["metadata"]["namespace"] = "default"
            stored.append(client.create(resource, document))
    return stored


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_converted_yaml_is_accepted_by_the_api_server(client: Client, file: Path) -> None:
    converted = convert(file.read_text())

    stored = apply(client, converted.text)

    assert convert(converted.text).text == converted.text
    assert len(stored) >= ("apiVersion: " in converted.text) - ("Config" in converted.text)
    for item in stored:
        assert item["metadata"]["uid"]


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.stem)
def test_the_guides_yaml_is_refused_even_in_a_served_version(client: Client, file: Path) -> None:
    served = file.read_text().replace("resource.k8s.io/v1beta2", "resource.k8s.io/v1")

    for text in (file.read_text(), served):
        with pytest.raises(ApiError):
            apply(client, text)


@pytest.mark.parametrize("file", UNCHANGED, ids=lambda file: file.stem)
def test_accepted_yaml_stays_byte_for_byte(file: Path) -> None:
    converted = convert(file.read_text())

    assert converted.text == file.read_text()
    assert converted.reasons == converted.problems == ()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_comments_and_their_order_stay(file: Path) -> None:
    def comments(text: str) -> list[str]:
        return [line.partition("#")[2] for line in text.splitlines() if "#" in line]

    assert comments(convert(file.read_text()).text) == comments(file.read_text())


def test_the_guides_template_is_converted_completely() -> None:
    converted = convert((FOLDER / "6.3.2-template.yaml").read_text())

    assert (
        converted.text
        == """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: tensor-fusion-gpu-template
  labels:
    tensor-fusion.ai/resource-claim-template: "true"
spec:
  metadata:
    labels:
      tensor-fusion.ai/resource-claim-template: "true"
  spec:
    devices:
      requests:
        - name: gpu-request
          exactly:
            deviceClassName: tensor-fusion.ai
            allocationMode: ExactCount
            # (a comment)
            count: 1
            selectors:
              - cel:
                  # (another comment)
                  expression: "true"
            capacity:
              requests: {}  # (a last comment)
"""
    )
    assert [(reason.line, reason.text.split(":")[0]) for reason in converted.reasons] == [
        (1, "resource.k8s.io/v1beta2 is not served by default since 1.34"),
        (6, "a template's own labels are not copied to its claims"),
        (12, "allocationMode belongs in exactly"),
        (13, "deviceClassName is required"),
        (16, "unknown field selector"),
    ]


@pytest.mark.parametrize("name", ["4.2.4-fragment", "appendix-2"])
def test_an_expression_in_an_annotation_is_translated(name: str) -> None:
    def expression(text: str) -> str:
        loaded = yaml.safe_load(text)
        annotations = loaded.get("metadata", loaded)["annotations"]
        return str(annotations["tensor-fusion.ai/dra-cel-expression"])

    text = (FOLDER / f"{name}.yaml").read_text()

    translated = expression(convert(text).text)

    assert translated == translate(expression(text))
    assert cel_evaluation.check_expression(translated) is None
