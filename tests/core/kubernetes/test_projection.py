"""What is kept of foreign objects, and which forms are refused."""

from typing import Any

import pytest

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.projection import MAX_TEXT, Projection, projected

KEPT: Projection = {
    "metadata!": {"name!": str, "labels": dict},
    "spec": {"devices": [{"name!": str}], "count": int, "first": lambda given: given[:1]},
}


def test_nothing_else_is_kept() -> None:
    item = {
        "metadata": {"name": "a", "labels": {"x": "1"}, "annotations": {"big": "x" * 10**6}},
        "spec": {"devices": [{"name": "g", "more": 1}], "count": 2, "first": [1, 2], "rest": {}},
        "status": None,
    }

    assert projected(item, KEPT) == {
        "metadata": {"name": "a", "labels": {"x": "1"}},
        "spec": {"devices": [{"name": "g"}], "count": 2, "first": [1]},
    }


def test_null_is_a_missing_field_and_long_strings_are_cut() -> None:
    item = {"metadata": {"name": "n" * 10**6, "labels": None}, "spec": None}

    assert projected(item, KEPT) == {"metadata": {"name": "n" * MAX_TEXT}}


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ([], "object: found a list, expected an object"),
        ({}, "metadata: found none, expected one"),
        ({"metadata": {}}, "metadata.name: found none, expected one"),
        ({"metadata": {"name": 5}}, "metadata.name: found a number, expected a string"),
        ({"metadata": {"name": "a"}, "spec": "x"}, "spec: found a string, expected an object"),
        (
            {"metadata": {"name": "a"}, "spec": {"devices": {}}},
            "spec.devices: found an object, expected a list",
        ),
        (
            {"metadata": {"name": "a"}, "spec": {"devices": [{}]}},
            "spec.devices.name: found none, expected one",
        ),
        (
            {"metadata": {"name": "a"}, "spec": {"count": "2"}},
            "spec.count: found a string, expected a number",
        ),
    ],
)
def test_another_form_is_refused_with_its_path(item: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        projected(item, KEPT)
