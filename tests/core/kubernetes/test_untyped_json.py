"""Untyped JSON: its text, and fields that are read from it."""

import json
from enum import StrEnum
from functools import partial

import pytest

from tensorfusion_dra.core.kubernetes import field_errors, untyped_json
from tensorfusion_dra.core.kubernetes.field_errors import Fields, boolean, whole_number


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("inside", ["1", '"text"'])
def test_a_hundred_levels_are_read_and_one_more_is_not(opening: str, inside: str) -> None:
    closing = "]" if opening == "[" else "}"

    untyped_json.parse((opening * 100 + inside + closing * 100).encode())

    with pytest.raises(ValueError, match="more than 100 levels"):
        untyped_json.parse((opening * 101 + inside + closing * 101).encode())


def test_many_brackets_side_by_side_or_in_text_are_no_levels() -> None:
    value = {"a": [{} for _ in range(500)], "b": "[{" * 500, "c": [[[]]] * 200}

    assert untyped_json.parse(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000])
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        untyped_json.parse(text)


def test_truth_values_are_no_numbers() -> None:
    values = [0, 1.5, float("nan"), True, False, "1", None]

    assert [untyped_json.is_number(value) for value in values] == [True] * 3 + [False] * 4


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


level = partial(field_errors.choice, choices=Level)
up_to_3 = partial(whole_number, least=0, most=3)


def texts(fields: Fields) -> list[str]:
    return [str(error) for error in fields.errors]


def test_errors_of_an_object_and_those_inside_it_are_collected_in_order() -> None:
    fields = Fields({"level": "best", "inner": {"on": 1, "count": 4}, "name": "x"}, path="spec")
    inner = fields.inner("inner")

    assert fields.read("level", level, None) is None
    assert inner.read("on", boolean, default=False) is False
    assert inner.read("count", up_to_3, 2) == 2
    fields.refuse_others(["level", "inner"])
    fields.expect("kind", "Pool")
    assert texts(fields) == [
        "spec.level: found 'best', expected one of low, high",
        "spec.inner.on: found 1, expected true or false",
        "spec.inner.count: found 4, expected a whole number 0 to 3",
        "spec.name: found this field, expected one of level, inner",
        "spec.kind: found None, expected Pool",
    ]
    assert inner.errors is fields.errors


def test_valid_fields_are_read_without_errors() -> None:
    fields = Fields({"level": "high", "on": True, "count": 3, "inner": None})

    assert fields.read("level", level, None) is Level.HIGH
    assert fields.read("on", boolean, None) is True
    assert fields.read("count", up_to_3, 0) == 3
    assert fields.read("absent", up_to_3, 1) == 1
    assert fields.inner("inner").found == fields.inner("absent").found == {}
    assert fields.errors == []


def test_key_that_is_no_plain_name_stands_in_brackets() -> None:
    assert Fields({}, path="metadata.annotations").path_of("example.com/a") == (
        "metadata.annotations[example.com/a]"
    )
    assert Fields({}).path_of("example.com/a") == "example.com/a"
