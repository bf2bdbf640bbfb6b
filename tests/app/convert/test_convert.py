"""What is converted, form by form, and what is refused."""

import json
import textwrap

import pytest
import yaml

from tensorfusion_dra.app.convert.convert import Converted, convert
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError

A = f'device.attributes["{names.DRIVER}"]'
CLAIM = """\
apiVersion: resource.k8s.io/{version}
kind: ResourceClaim
metadata:
  name: a
spec:
  devices:
    requests:
"""


def claim(requests: str, version: str = "v1") -> str:
    """A claim with requests, which are written without indentation."""
    return (
        CLAIM.format(version=version)
        + textwrap.indent(textwrap.dedent(requests).strip(), "    ")
        + "\n"
    )


def requests(converted: Converted) -> str:
    """The requests of a claim, without indentation."""
    return textwrap.dedent(converted.text.partition("requests:\n")[2]).strip()


def said(converted: Converted) -> list[str]:
    return [f"{reason.line}: {reason.text}" for reason in converted.reasons]


def problems(converted: Converted) -> list[str]:
    return [f"{problem.line}: {problem.text}" for problem in converted.problems]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            """
            - name: gpu   # the first
              allocationMode: ExactCount   # as many
              # how many
              exactly:
                # from here
                deviceClassName: x
            """,
            """
            - name: gpu   # the first
              # how many
              exactly:
                allocationMode: ExactCount   # as many
                # from here
                deviceClassName: x
            """,
            id="into a block that is there",
        ),
        pytest.param(
            """
            - deviceClassName: x   # first
              # the name
              name: gpu
              count: 2

              selectors:
              - cel:
                  # which
                  expression: "true"
            """,
            """
            - exactly:
                deviceClassName: x   # first
                count: 2
                selectors:
                - cel:
                    # which
                    expression: "true"
              # the name
              name: gpu
            """,
            id="into a block that is not there, from the dash of the list",
        ),
        pytest.param(
            "- {name: gpu, deviceClassName: x, count: 2}",
            "- {name: gpu, exactly: {deviceClassName: x, count: 2}}",
            id="in brackets",
        ),
        pytest.param(
            "- {deviceClassName: x, name: gpu, exactly: {count: 2}, allocationMode: ExactCount}",
            "- {name: gpu, exactly: {deviceClassName: x, allocationMode: ExactCount, count: 2}}",
            id="from all around into brackets",
        ),
        pytest.param(
            """
            - name: gpu
              deviceClassName: x
              exactly: {}
            """,
            """
            - name: gpu
              exactly: {deviceClassName: x}
            """,
            id="into empty brackets",
        ),
        pytest.param(
            """
            - name: gpu
              allocationMode: ExactCount
              exactly:
                deviceClassName: x
                allocationMode: ExactCount
            """,
            """
            - name: gpu
              exactly:
                deviceClassName: x
                allocationMode: ExactCount
            """,
            id="what is there already goes",
        ),
        pytest.param(
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selector:   # which
                  cel:
                    expression: 'true'
                count: 1
            """,
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selectors:   # which
                  - cel:
                      expression: 'true'
                count: 1
            """,
            id="a selector becomes a list",
        ),
        pytest.param(
            "- {name: a, exactly: {deviceClassName: x, selector: {cel: {expression: 'true'}}}}",
            "- {name: a, exactly: {deviceClassName: x, selectors: [{cel: {expression: 'true'}}]}}",
            id="a selector in brackets too",
        ),
        pytest.param(
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selector:
                - cel: {expression: 'true'}
            """,
            """
            - name: gpu
              exactly:
                deviceClassName: x
                selectors:
                - cel: {expression: 'true'}
            """,
            id="a list has the wrong name only",
        ),
        pytest.param(
            """
            - name: gpu
              firstAvailable:
              - name: one
                count: 2
              - {name: two}
            """,
            """
            - name: gpu
              firstAvailable:
              - name: one
                deviceClassName: tensor-fusion.ai
                count: 2
              - {name: two, deviceClassName: tensor-fusion.ai}
            """,
            id="every choice has a class",
        ),
    ],
)
def test_a_request_is_put_in_order(before: str, after: str) -> None:
    converted = convert(claim(before))

    assert requests(converted) == textwrap.dedent(after).strip()
    assert converted.problems == ()
    assert converted.reasons
    assert convert(converted.text).text == converted.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("expression: {0}", "expression: {1}"),
        ("expression: '{0}'", "expression: '{1}'"),
        ("expression: {0} # why", "expression: {1} # why"),
        ("expression: |\n  {0} &&\n\n    true // \n", "expression: |\n  {1} &&\n\n    true // \n"),
        ("expression: |2-\n    {0}", "expression: |2-\n    {1}"),
        ("expression: >-\n  {0}\n  &&\n  true", "expression: >-\n  {1}\n  &&\n  true"),
        ("expression: true &&\n  {0}", "expression: true &&\n  {1}"),
        ("expression: '{0} ||\n  ''a'' == \"b\"'", "expression: '{1} ||\n  ''a'' == \"b\"'"),
    ],
)
def test_an_expression_is_translated_in_whatever_way_it_is_written(before: str, after: str) -> None:
    request = """
    - name: gpu
      exactly:
        deviceClassName: x
        selectors:
        - cel:
    """
    begin = textwrap.dedent(request).strip() + "\n"
    dialect, translated = 'device.attributes["model"] == "A100"', f'{A}.model == "A100"'
    old, new = (
        begin + textwrap.indent(text.format(dialect, translated), " " * 8)
        for text in (before, after)
    )

    converted = convert(claim(old))

    assert requests(converted) == new.strip()
    assert said(converted) == [f"{_line(old)}: the user guide's CEL, as Kubernetes takes it"]


def _line(text: str) -> int:
    return CLAIM.count("\n") + 1 + text.strip()[: text.index("expression")].count("\n")


@pytest.mark.parametrize(
    "escaped",
    [
        r"device.attributes[\"model\"] == \"A\x31\u00300\"",
        'device.attributes[\\"model\\"] ==\\\n          \\ \\"A\\U00000031\\x30\\60\\"',
        r"\tdevice.attributes[\"model\"]\x20==\n\"A100\"",
    ],
)
def test_an_expression_in_double_quotes_keeps_its_escapes(escaped: str) -> None:
    text = claim(
        "- name: g\n  exactly:\n    deviceClassName: x\n    selectors:\n    - cel:\n"
        f'        expression: "{escaped}"'.replace("\\60", "0")
    )
    (before,) = _expressions(text)

    converted = convert(text)

    (after,) = _expressions(converted.text)
    assert after == before.replace('device.attributes["model"]', f"{A}.model")
    assert converted.text == text.replace(
        r"device.attributes[\"model\"]", A.replace('"', r"\"") + ".model"
    )


def _expressions(text: str) -> list[str]:
    loaded = yaml.safe_load(text)
    return [
        selector["cel"]["expression"]
        for request in loaded["spec"]["devices"]["requests"]
        for selector in request["exactly"]["selectors"]
    ]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize("quotes", ["", "'", '"'])
def test_older_versions_become_v1(version: str, quotes: str) -> None:
    text = f"kind: DeviceClass\napiVersion: {quotes}resource.k8s.io/{version}{quotes} # old\n"

    converted = convert(text)

    assert converted.text == text.replace(version, "v1")
    assert said(converted) == [
        f"2: resource.k8s.io/{version} is not served by default since 1.34: resource.k8s.io/v1"
    ]


def test_a_device_of_v1beta1_loses_its_wrapping() -> None:
    text = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceSlice
spec:
  devices:
  - name: a
    basic:   # all of it
      # inside
      attributes:
        model: {stringValue: x}   # short

      capacity:
        vram: {value: 40Gi}
  - basic:
      attributes: {n: {intValue: 5}, b: {boolValue: true}, v: {versionValue: 1.0.0}}
    name: b
  - {name: c, basic: {attributes: {}}}
"""
    after = """\
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
spec:
  devices:
  - name: a
    # inside
    attributes:
      model: {string: x}   # short

    capacity:
      vram: {value: 40Gi}
  - attributes: {n: {int: 5}, b: {bool: true}, v: {version: 1.0.0}}
    name: b
  - {name: c, attributes: {}}
"""

    converted = convert(text)

    assert converted.text == after
    assert "9: stringValue is unknown: string" in said(converted)


def test_a_template_keeps_the_metadata_that_its_spec_has() -> None:
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
    assert converted == text.replace("metadata: {}", f"metadata: {{labels: {{{label}}}}}")
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
def test_a_pool_is_of_one_node(pool: str, after: str) -> None:
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
def test_a_shared_device_has_a_policy_for_each_capacity(capacity: str, policy: str) -> None:
    text = (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nspec:\n  devices:\n  - name: a\n"
        f"    allowMultipleAllocations: true\n    capacity: {{{capacity}}}\n"
    )

    converted = convert(text)
    alone = convert(text.replace("true", "false"))

    assert converted.text == text.replace("}}", f", requestPolicy: {policy}}}}}")
    assert alone.reasons == ()


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


def test_line_breaks_of_windows_stay() -> None:
    text = claim("- name: gpu\n  count: 1\n  selector:\n    cel: {expression: 'true'}", "v1beta1")

    converted = convert(text.replace("\n", "\r\n"))

    assert converted.text == convert(text).text.replace("\n", "\r\n")


def test_what_an_alias_leads_to_is_changed_once() -> None:
    text = claim(
        """
        - name: a
          exactly: &one
            selector: {cel: {expression: 'true'}}
        - name: b
          exactly: *one
        """
    )

    converted = convert(text)

    assert converted.text.count("deviceClassName") == converted.text.count("selectors: [{") == 1


def test_pods_that_others_make_are_found_too() -> None:
    text = """\
kind: Deployment
spec:
  template:
    metadata:
      annotations: {tensor-fusion.ai/dra-cel-expression: 'device.attributes["qos"] == "low"'}
"""

    assert convert(text).text == text.replace('device.attributes["qos"]', f"{A}.qos")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            claim(
                "- {name: a, exactly: {deviceClassName: x, selectors: [{cel: {expression: a =}}]}}"
            ),
            "8: expression 1:3: found '='",
        ),
        (
            claim(
                """
                - name: a
                  exactly:
                    deviceClassName: x
                    selectors:
                    - cel:
                        expression: |
                          true &&
                          device.attributes["quota"] == 5
                """
            ),
            "15: expression 2:19: found attribute 'quota'",
        ),
        (
            claim("- {name: a, count: 1, exactly: {deviceClassName: x, count: 2}}"),
            "8: count beside exactly says something else than the one in it",
        ),
        (
            claim("- {name: a, allocationMode: All, firstAvailable: []}"),
            "8: allocationMode beside firstAvailable: expected it in each of its entries",
        ),
        (
            claim("- {name: a, exactly: {deviceClassName: x, selector: {}, selectors: []}}"),
            "8: selector beside selectors: expected selectors alone",
        ),
        (claim("- {name: a, count: 1, exactly: }"), "8: exactly: expected a mapping"),
        (
            claim("- name: a\n  selectors:\n  - cel: {expression: x}\n  exactly: {count: 1}"),
            "9: expected exactly as a block, as what belongs in it is one",
        ),
        (
            claim("- {}", "v1alpha3"),
            "1: apiVersion: found resource.k8s.io/v1alpha3, expected one of resource.k8s.io/v1",
        ),
        (
            "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nspec: {devices: [{name: a, "
            "allowMultipleAllocations: true, capacity: {vram: {value: many}}}]}",
            "3: vram: found 'many', expected a quantity",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_with_its_line(text: str, problem: str) -> None:
    found = problems(convert(text))

    assert len(found) == 1
    assert found[0].startswith(problem)


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t- a", "a: \x00", "*nothing"])
def test_what_is_no_yaml_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="YAML: "):
        convert(text)


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "---\n---\n", "text", "- a\n- {b: c}\n", "1: {2: 3}"]
)
def test_what_is_no_object_stays(text: str) -> None:
    assert convert(text) == Converted(text=text, reasons=(), problems=(), notes=())
