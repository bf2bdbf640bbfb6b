"""JSON from outside, which may nest without end."""

import json
from typing import Final

_MOST_LEVELS: Final = 100
"""Kubernetes' own objects nest about twenty levels deep. Code that walks through an object calls
itself for each level, and Python ends that at a thousand."""


def parsed(text: bytes | str) -> object:
    """The value of a JSON text.

    Raises:
        ValueError: It is no JSON, or nests too deeply.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"found more than {_MOST_LEVELS} levels of nesting") from None
    level: list[object] = [value]
    for _ in range(_MOST_LEVELS):
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise ValueError(f"found more than {_MOST_LEVELS} levels of nesting")


def _children(item: object) -> "list[object]":
    if isinstance(item, dict):
        return list(item.values())
    return item if isinstance(item, list) else []
