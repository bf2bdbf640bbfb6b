"""Conversion of a claim's requests and their expressions, in every style of YAML."""

import textwrap

import pytest

from tensorfusion_dra.app.convert.convert import Converted, convert
from tests.support.conversions import CLAIM, claim_text, reasons_with_lines
from tests.support.selecting import A


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
              - name: one
                deviceClassName: tensor-fusion.ai
                count: 2
              - {name: two, deviceClassName: tensor-fusion.ai}
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
        ("expression: >-\n  {0}\n  &&\n  true", "expression: >-\n  {1}\n  &&\n  true"),
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
