"""JSON from untrusted sources, with a bound on its nesting, and JSON in one short line."""

import json
from typing import Any, Final

_MOST_LEVELS: Final = 100
"""Kubernetes' own objects nest about twenty levels deep. Code that walks an object recurses at each
level, and Python's recursion limit is a thousand."""


def parse(text: bytes) -> object:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is not JSON, or nests too deeply.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    # Each level opens a bracket. Most objects have too few for the bound, and need no walk.
    if text.count(b"{") + text.count(b"[") > _MOST_LEVELS:
        _check_depth(value)
    return value


def compact(value: Any) -> str:
    """Return the value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"found more than {_MOST_LEVELS} levels of nesting")
