"""The bound on the nesting of JSON from servers."""

import json

import pytest

from tensorfusion_dra.core.kubernetes import untyped_json


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
