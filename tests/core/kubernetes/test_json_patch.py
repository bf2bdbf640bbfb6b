"""A JSON patch turns the first document into the second, also when a server applies it."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from dra_simulator.api.patches import JsonPatch
from tensorfusion_dra.core.kubernetes import json_patch

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(alphabet="a/~0", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet="ab/~", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(alphabet="ab/~", max_size=3), VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_patch_turns_the_first_document_into_the_second(
    before: dict[str, object], after: dict[str, object]
) -> None:
    untouched = copy.deepcopy(before)

    operations = json_patch.between(before, after)

    assert JsonPatch(tuple(operations)).applied(before) == after
    assert before == untouched


@given(OBJECTS)
def test_equal_documents_need_no_patch(document: dict[str, object]) -> None:
    assert json_patch.between(document, copy.deepcopy(document)) == []


def test_additional_list_elements_are_appended() -> None:
    assert json_patch.between({"a": [1]}, {"a": [1, 2]}) == [
        {"op": "add", "path": "/a/-", "value": 2}
    ]


def test_field_names_are_escaped() -> None:
    assert json_patch.between({}, {"tensor-fusion.ai/x~y": 1}) == [
        {"op": "add", "path": "/tensor-fusion.ai~1x~0y", "value": 1}
    ]


def test_true_differs_from_1() -> None:
    assert json_patch.between({"a": 1}, {"a": True}) == [
        {"op": "replace", "path": "/a", "value": True}
    ]
