"""Conversion of requests, expressions and other parts in every style of YAML, and refusals."""

import textwrap
from typing import Final

import pytest

from tensorfusion_dra.app.convert.convert import Converted, convert
from tensorfusion_dra.core.errors import InputError
from tests.support.selecting import A

CLAIM: Final = """\
apiVersion: resource.k8s.io/{version}
kind: ResourceClaim
metadata:
  name: a
spec:
  devices:
    requests:
"""


def claim_text(requests: str, version: str = "v1") -> str:
    """Return a claim with these requests, which are given without indentation."""
    return (
        CLAIM.format(version=version)
        + textwrap.indent(textwrap.dedent(requests).strip(), "    ")
        + "\n"
    )


def reasons_with_lines(converted: Converted) -> list[str]:
    """Return the reasons for all changes, each with its line."""
    return [f"{reason.line}: {reason.text}" for reason in converted.reasons]


def requests(converted: Converted) -> str:
    """Return the requests of a claim, without indentation."""
    return textwrap.dedent(converted.text.partition("requests:\n")[2]).strip()


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
              exactly:
                deviceClassName: x
            """,
            id="into empty brackets",
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
                selectors:  # which
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
              - deviceClassName: tensor-fusion.ai
                name: one
                count: 2
              - {deviceClassName: tensor-fusion.ai, name: two}
            """,
            id="every choice has a class",
        ),
    ],
)
def test_a_requests_entries_are_moved_and_completed(before: str, after: str) -> None:
    converted = convert(claim_text(before))

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
        ('expression: "{0}"', 'expression: "{1}"'),
        ("expression: |\n  {0} &&\n\n    true // \n", "expression: |\n  {1} &&\n\n    true // \n"),
        ("expression: >-\n  {0}\n  &&\n  true", "expression: >-\n  {1} && true"),
        ("expression: true &&\n  {0}", "expression: true && {1}"),
        ("expression: '{0} ||\n  ''a'' == \"b\"'", "expression: '{1} || ''a'' == \"b\"'"),
    ],
)
def test_an_expression_is_translated_in_every_scalar_style(before: str, after: str) -> None:
    request = """
    - name: gpu
      exactly:
        deviceClassName: x
        selectors:
        - cel:
    """
    begin = textwrap.dedent(request).strip() + "\n"
    both = ('device.attributes["model"] == "A100"', f'{A}.model == "A100"')
    if '"{0}"' in before:
        both = (both[0].replace('"', r"\""), both[1].replace('"', r"\""))
    old, new = (begin + textwrap.indent(text.format(*both), " " * 8) for text in (before, after))

    converted = convert(claim_text(old))

    assert requests(converted) == new.strip()
    assert reasons_with_lines(converted) == [
        f"{_line(old)}: user guide's CEL, translated for Kubernetes"
    ]


def _line(text: str) -> int:
    return CLAIM.count("\n") + 1 + text.strip()[: text.index("expression")].count("\n")


def test_a_node_with_an_alias_is_changed_once() -> None:
    text = claim_text(
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


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize("quotes", ["", "'", '"'])
def test_older_versions_become_v1(version: str, quotes: str) -> None:
    text = f"kind: DeviceClass\napiVersion: {quotes}resource.k8s.io/{version}{quotes}\n"

    converted = convert(text)

    assert converted.text == text.replace(version, "v1")
    assert reasons_with_lines(converted) == [
        f"2: resource.k8s.io/{version} is not served by default since 1.34: resource.k8s.io/v1"
    ]


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            claim_text(
                "- {name: a, exactly: {deviceClassName: x, selectors: [{cel: {expression: a =}}]}}"
            ),
            "8: expression 1:3: found '='",
        ),
        (
            claim_text("- {name: a, count: 1, exactly: {deviceClassName: x, count: 2}}"),
            "8: count: expected it only in exactly",
        ),
        (
            claim_text("- {name: a, allocationMode: All, firstAvailable: []}"),
            "8: allocationMode: expected it only in exactly, or in each of firstAvailable",
        ),
        (
            claim_text("- {name: a, exactly: {deviceClassName: x, selector: {}, selectors: []}}"),
            "8: selector beside selectors: expected selectors alone",
        ),
        (claim_text("- {name: a, count: 1, exactly: }"), "8: count: expected it only in exactly"),
        (
            claim_text("- {}", "v1alpha3"),
            "1: apiVersion: found resource.k8s.io/v1alpha3, expected one of resource.k8s.io/v1",
        ),
        (
            "apiVersion: resource.k8s.io/v1beta2\nkind: ResourceSlice\n",
            "2: a ResourceSlice is not converted: the node plugin publishes its own",
        ),
    ],
)
def test_an_error_that_cannot_be_converted_is_reported_with_its_line(
    text: str, problem: str
) -> None:
    (found,) = convert(text).problems

    assert f"{found.line}: {found.text}".startswith(problem)


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        *(("a: [", ""), ("a: b: c", ""), ("\t- a", ""), ("a: \x00", ""), ("*nothing", "")),
        ("a: 1\n---\nb: 1\nc: 2\nb: 3\n", 'line 5: found duplicate key "b"'),
    ],
)
def test_invalid_yaml_is_bad_input(text: str, trouble: str) -> None:
    with pytest.raises(InputError, match=f"^YAML: {trouble}"):
        convert(text)


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "---\n---\n", "text", "- a\n- {b: c}\n", "1: {2: 3}"]
)
def test_documents_that_are_not_objects_stay_unchanged(text: str) -> None:
    assert convert(text) == Converted(text=text, reasons=(), problems=())
