"""Accessors for JSON that has not been validated."""

from collections.abc import Mapping
from typing import TypeGuard


def as_map(value: object) -> Mapping[str, object]:
    """Return a JSON object as it is, and an empty one in place of any other value."""
    return value if isinstance(value, Mapping) else {}


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
