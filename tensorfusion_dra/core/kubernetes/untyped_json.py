"""Reads JSON of which nothing is known yet."""

from collections.abc import Mapping


def as_map(value: object) -> Mapping[str, object]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[object]:
    """A JSON list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def name_of(value: object) -> str:
    """The field `name` of a JSON object as a text; "" if it has none."""
    return str(as_map(value).get("name", ""))
