"""Accessors for JSON that has not been validated."""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeGuard


def as_map(value: object) -> Mapping[str, object]:
    """Return a JSON object as it is, and an empty one in place of any other value."""
    return value if isinstance(value, Mapping) else {}


def as_maps(value: object) -> dict[str, Mapping[str, object]]:
    """Return the fields of a JSON object, each as a JSON object."""
    return {key: as_map(item) for key, item in as_map(value).items()}


def as_list(value: object) -> list[object]:
    """Return a JSON list as it is, and an empty one in place of any other value."""
    return value if isinstance(value, list) else []


def name_of(value: object) -> str:
    """Return the field `name` of a JSON object as a string; "" if there is none."""
    return str(as_map(value).get("name", ""))


def is_whole_number(value: object) -> TypeGuard[int]:
    """Return True for a whole number; Python's True and False are not one."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True for a number, a fraction or NaN too; Python's True and False are not one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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


def compact_json(value: Any) -> str:
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
