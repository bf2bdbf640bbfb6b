"""JSON from untrusted sources, with a bound on its nesting."""

import json
from typing import Final

_MOST_LEVELS: Final = 100
"""Kubernetes' own objects nest about twenty levels deep. Code that walks an object recurses at each
level, and Python's recursion limit is a thousand."""


def parse(text: bytes | str) -> object:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is not JSON, or nests too deeply.
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
