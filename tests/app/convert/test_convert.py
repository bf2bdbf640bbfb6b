"""Conversions, one by one."""

import json

import pytest

from tensorfusion_dra.app.convert.convert import convert
from tests.support.conversions import claim_text, reasons_with_lines
from tests.support.selecting import A


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize("quotes", ["", "'", '"'])
def test_older_versions_become_v1(version: str, quotes: str) -> None:
    text = f"kind: DeviceClass\napiVersion: {quotes}resource.k8s.io/{version}{quotes}\n"

    converted = convert(text)

    assert converted.text == text.replace(version, "v1")
    assert reasons_with_lines(converted) == [
        f"2: resource.k8s.io/{version} is not served by default since 1.34: resource.k8s.io/v1"
    ]


def test_values_of_attributes_get_the_names_of_v1() -> None:
    values = "{a: {stringValue: x}, n: {intValue: 5}, b: {boolValue: true}, v: {versionValue: 1.0}}"
    text = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\n"
        f"spec: {{devices: [{{name: a, attributes: {values}}}]}}\n"
    )

    assert convert(text).text == text.replace("Value", "")


def test_a_templates_label_is_added_to_the_metadata_in_its_spec() -> None:
    text = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {labels: {tensor-fusion.ai/resource-claim-template: "true"}}
spec:
  metadata: {}
"""
    labels = text.replace("metadata: {}", "metadata:\n    labels:\n      # mine\n      a: b")

    converted = convert(text).text
    with_labels = convert(labels).text

    label = 'tensor-fusion.ai/resource-claim-template: "true"'
    assert converted == text.replace("metadata: {}", f"metadata:\n    labels:\n      {label}")
    assert with_labels == labels.replace("labels:\n      #", f"labels:\n      {label}\n      #")


@pytest.mark.parametrize(
    ("pool", "after"),
    [
        ("name: prod", "name: prod/node-01"),
        ("name: 'prod'", "name: 'prod/node-01'"),
        ("name: node-01", "name: node-01"),
        ("name: prod/node-01", "name: prod/node-01"),
    ],
)
def test_the_node_is_appended_to_a_pools_name(pool: str, after: str) -> None:
    text = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\n"
        f"spec: {{nodeName: node-01, pool: {{{pool}}}}}\n"
    )

    assert convert(text).text == text.replace(pool, after)


@pytest.mark.parametrize(
    ("capacity", "policy"),
    [
        ("vram: {value: 40Gi}", '{default: "40Gi", validRange: {min: 1Mi, step: 1Mi}}'),
        ("vram: {value: '40000000001'}", '{default: "40000000001", validRange: {min: "0"}}'),
        ("tflops: {value: 71200m}", '{default: "71200m", validRange: {min: "0"}}'),
    ],
)
def test_each_capacity_of_a_shared_device_gets_a_request_policy(capacity: str, policy: str) -> None:
    text = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nspec:\n  devices:\n  - name: a\n"
        f"    allowMultipleAllocations: true\n    capacity: {{{capacity}}}\n"
    )

    converted = convert(text)
    exclusive = convert(text.replace("true", "false"))

    assert converted.text == text.replace("}}", f", requestPolicy: {policy}}}}}")
    assert exclusive.reasons == ()


def test_json_stays_json() -> None:
    document = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": "resource.k8s.io/v1beta1",
                "kind": "ResourceClaim",
                "spec": {
                    "devices": {
                        "requests": [
                            {
                                "name": "gpu",
                                "count": 1,
                                "selector": {
                                    "cel": {"expression": 'device.attributes["model"] == "A100"'}
                                },
                            }
                        ]
                    }
                },
            }
        ],
    }

    for indent in (None, 2):
        converted = convert(json.dumps(document, indent=indent))

        (item,) = json.loads(converted.text)["items"]
        assert item["apiVersion"] == "resource.k8s.io/v1"
        assert item["spec"]["devices"]["requests"] == [
            {
                "name": "gpu",
                "exactly": {
                    "deviceClassName": "tensor-fusion.ai",
                    "count": 1,
                    "selectors": [{"cel": {"expression": f'{A}.model == "A100"'}}],
                },
            }
        ]


def test_windows_line_breaks_are_kept() -> None:
    text = claim_text(
        "- name: gpu\n  count: 1\n  selector:\n    cel: {expression: 'true'}", "v1beta1"
    )

    converted = convert(text.replace("\n", "\r\n"))

    assert converted.text == convert(text).text.replace("\n", "\r\n")


def test_annotations_in_pod_templates_are_converted() -> None:
    text = """\
kind: Deployment
spec:
  template:
    metadata:
      annotations: {tensor-fusion.ai/dra-cel-expression: 'device.attributes["qos"] == "low"'}
"""

    assert convert(text).text == text.replace('device.attributes["qos"]', f"{A}.qos")
