"""List answers, decoded one object at a time, however the text is cut into pieces."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tensorfusion_dra.core.kubernetes.item_stream import ItemStream

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

    assert list(stream) == [{"n": 1}, {"n": 2}]
    assert (stream.fields, stream.left_out) == ({"kind": "List"}, 1)


def test_null_and_missing_items_are_an_empty_list() -> None:
    assert list(ItemStream([b'{"items": null}'], max_bytes=100)) == []
    assert list(ItemStream([b"{}"], max_bytes=100)) == []


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
