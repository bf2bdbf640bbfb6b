"""Untyped JSON: its text, streams of items, fields that are read from it or kept of it."""

import json
import random
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import Any

import pytest

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import field_errors, untyped_json
from tensorfusion_dra.core.kubernetes.field_errors import Fields, boolean, whole_number
from tensorfusion_dra.core.kubernetes.item_stream import ItemStream, PassedOver
from tensorfusion_dra.core.kubernetes.projection import MAX_TEXT, Projection, projected


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("inside", ["1", '"text"'])
def test_a_hundred_levels_are_read_and_one_more_is_not(
    opening: str, closing: str, inside: str
) -> None:
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


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


level = partial(field_errors.choice, choices=Level)
up_to_3 = partial(whole_number, least=0, most=3)


def test_errors_of_an_object_and_those_inside_it_are_collected_in_order() -> None:
    fields = Fields({"level": "best", "inner": {"on": 1, "count": 4}, "name": "x"}, path="spec")
    inner = fields.inner("inner")

    assert fields.read("level", level, None) is None
    assert inner.read("on", boolean, default=False) is False
    assert inner.read("count", up_to_3, 2) == 2
    fields.refuse_others(["level", "inner"])
    fields.expect("kind", "Pool")
    assert [str(error) for error in fields.errors] == [
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


@pytest.mark.parametrize(
    ("path", "shown"),
    [("metadata.annotations", "metadata.annotations[example.com/a]"), ("", "example.com/a")],
)
def test_key_that_is_no_plain_name_stands_in_brackets(path: str, shown: str) -> None:
    assert Fields({}, path=path).path_of("example.com/a") == shown


@pytest.mark.parametrize(
    ("value", "is_number"),
    [(0, True), (1.5, True), (float("nan"), True)]
    + [(value, False) for value in (True, False, "1", None)],
)
def test_truth_values_are_no_numbers(value: object, *, is_number: bool) -> None:
    assert untyped_json.is_number(value) is is_number


LIST: dict[str, Any] = {
    "kind": "PodList",
    "metadata": {"resourceVersion": "7", "remainingItemCount": 120},
    "items": [
        {"metadata": {"name": 'a "quoted" \\ name'}, "spec": {"n": [1, -2.5e3, True, None, {}]}},
        {"metadata": {"name": "ä\u2028]}"}, "spec": []},
        12.5,
    ],
    "count": 34,
}


def pieces(text: bytes, size: int) -> Iterator[bytes]:
    return (text[start : start + size] for start in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_cut_gives_the_same_items_and_fields(size: int, ascii_only: bool) -> None:
    for order in range(4):
        names = random.Random(order).sample(list(LIST), len(LIST))
        text = json.dumps({name: LIST[name] for name in names}, ensure_ascii=ascii_only, indent=1)

        stream = ItemStream(pieces(text.encode(), size), max_bytes=1000)

        assert list(stream) == LIST["items"]
        assert stream.fields == {name: LIST[name] for name in LIST if name != "items"}


def drawn(draw: random.Random, levels: int) -> object:
    """Return a JSON value with few or many parts, some of them empty, and odd texts."""
    if levels == 0 or draw.random() < 0.3:
        return draw.choice(({}, [], 1, "", 'a"b\\', "[{:,", "}]", "é"))
    parts = [drawn(draw, levels - 1) for _ in range(draw.randint(0, 3))]
    return parts if draw.random() < 0.5 else {f"{n}{{": part for n, part in enumerate(parts)}


@pytest.mark.parametrize("seed", range(300))
def test_each_item_is_read_or_passed_over_by_its_own_elements(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untyped_json, "MAX_ELEMENTS", 6)
    draw = random.Random(seed)
    items = [{} if draw.random() < 0.2 else {"a": drawn(draw, 4)} for _ in range(12)]
    text, size = json.dumps({"items": items}).encode(), draw.randint(1, 80)

    found = list(ItemStream(pieces(text, size)))

    assert [None if isinstance(each, PassedOver) else each for each in found] == [
        each if untyped_json.elements(json.dumps(each).encode()) <= 6 else None for each in items
    ]


def test_a_text_that_ends_early_is_refused_wherever_it_ends() -> None:
    text = json.dumps(LIST).encode()

    for end in range(len(text)):
        with pytest.raises(ValueError, match=r"found the end|Expecting|Unterminated|Invalid|delim"):
            list(ItemStream([text[:end]], max_bytes=1000))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[]", "found '\\[', expected '{'"),
        (b'{"items": [1 2]}', "found '2', expected ','"),
        (b'{"items" 1}', "expected ':'"),
        (b'{"items": {"a": 1}}', "items: found no list"),
        (b'{"items": []} {}', "more than one"),
        (b'{"items": ["\xff"]}', "utf-8"),
        (b'{"kind": ' + b"[" * 200 + b"]" * 200 + b"}", "levels of nesting"),
        (b'{"items": [' + b"[" * 2000, "found the end|Expecting"),
        (b'{"items": ["' + b"x" * 2_000_000 + b'"]}', "more than 1000000 bytes"),
    ],
)
def test_what_is_no_list_is_refused(text: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        list(ItemStream(pieces(text, 65536), max_bytes=1_000_000))


@pytest.mark.parametrize("levels", [101, 4_000, 100_000])
@pytest.mark.parametrize("size", [7, 64, 10_000])
def test_an_item_that_nests_too_deeply_costs_only_itself(levels: int, size: int) -> None:
    deep = b'{"b": "]\\"[", "a": ' + b"[" * levels + b'"\\\\"' + b"]" * levels + b"}"
    text = b'{"items": [{"n": 1}, ' + deep + b', {"n": 2}], "kind": "List"}'

    stream = ItemStream(pieces(text, size), max_bytes=10**6)

    first, passed_over, last = stream
    assert (first, last, stream.fields) == ({"n": 1}, {"n": 2}, {"kind": "List"})
    assert isinstance(passed_over, PassedOver)
    assert passed_over.head.startswith('{"b": "]\\"[", "a"')


@pytest.mark.parametrize("text", [b'{"items": null}', b"{}"])
def test_null_and_missing_items_are_an_empty_list(text: bytes) -> None:
    assert list(ItemStream([text], max_bytes=100)) == []


def test_only_as_much_is_read_as_the_next_item_needs() -> None:
    read: list[int] = []

    def arriving() -> Iterator[bytes]:
        yield b'{"items": ['
        for number in range(3):
            read.append(number)
            yield f'{"," if number else ""}{{"n": {number}}}'.encode()
        yield b"]}"

    for item in ItemStream(arriving(), max_bytes=100):
        assert isinstance(item, dict)
        assert read[-1] <= item["n"] + 1


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
