"""Errors that cannot be converted, with their lines, and texts that stay unchanged."""

import pytest

from tensorfusion_dra.app.convert.convert import Converted, convert
from tensorfusion_dra.core.errors import InputError
from tests.support.conversions import claim_text


def problems(converted: Converted) -> list[str]:
    return [f"{problem.line}: {problem.text}" for problem in converted.problems]


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
            claim_text(
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
            claim_text("- {name: a, count: 1, exactly: {deviceClassName: x, count: 2}}"),
            "8: count: found one beside exactly and another in it, expected one",
        ),
        (
            claim_text("- {name: a, allocationMode: All, firstAvailable: []}"),
            "8: allocationMode beside firstAvailable: expected it in each of its entries",
        ),
        (
            claim_text("- {name: a, exactly: {deviceClassName: x, selector: {}, selectors: []}}"),
            "8: selector beside selectors: expected selectors alone",
        ),
        (claim_text("- {name: a, count: 1, exactly: }"), "8: exactly: expected a mapping"),
        (
            claim_text("- {}", "v1alpha3"),
            "1: apiVersion: found resource.k8s.io/v1alpha3, expected one of resource.k8s.io/v1",
        ),
        (
            "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\n"
            "spec: {devices: [{name: a, basic: {}}]}",
            "3: basic: expected its entries beside name",
        ),
        (
            "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nspec: {devices: [{name: a, "
            "allowMultipleAllocations: true, capacity: {vram: {value: many}}}]}",
            "3: vram: found 'many', expected a quantity",
        ),
    ],
)
def test_an_error_that_cannot_be_converted_is_reported_with_its_line(
    text: str, problem: str
) -> None:
    found = problems(convert(text))

    assert len(found) == 1
    assert found[0].startswith(problem)


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t- a", "a: \x00", "*nothing"])
def test_invalid_yaml_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="YAML: "):
        convert(text)


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "---\n---\n", "text", "- a\n- {b: c}\n", "1: {2: 3}"]
)
def test_documents_that_are_not_objects_stay_unchanged(text: str) -> None:
    assert convert(text) == Converted(text=text, reasons=(), problems=(), notes=())
