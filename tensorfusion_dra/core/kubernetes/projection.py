"""Projections: the fields that a caller keeps of an object that anybody may write.

Anybody may write objects of up to 3 MiB. So a list of them is never kept whole: each object is
reduced to its projection as soon as it is read. A projection also checks that the fields have the
form that the code behind it relies on.

Example: {"metadata!": {"name!": str}, "spec": {"devices": [{"name": str}]}} keeps the names of an
object and of its devices, and refuses an object without metadata or name.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from tensorfusion_dra.core.errors import InputError

Projection: TypeAlias = "Mapping[str, Projection] | list[Projection] | Callable[[Any], Any] | type"
"""An object's fields, of which those with a ! have to be there; the form of each item of a list; a
type, whose values are kept as they are; or a function that returns what is kept."""

MAX_TEXT: Final = 16 * 2**10
"""Characters of a string that are kept: more than any valid name, amount, mark or selector has."""
_KINDS: Final = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a number",
    bool: "true or false",
}


def projected(value: Any, kept: Projection, where: str = "") -> Any:
    """Return what is kept of a JSON value; fields that are null are left out.

    Args:
        value: Of any form.
        kept: What is kept.
        where: Path of the value, for errors.

    Raises:
        InputError: The value has another form, or a required field is missing.
    """
    if isinstance(kept, type):
        found = _checked(value, kept, where)
        return found[:MAX_TEXT] if isinstance(found, str) else found
    if isinstance(kept, list):
        (of_item,) = kept
        return [projected(item, of_item, where) for item in _checked(value, list, where)]
    if not isinstance(kept, Mapping):
        return kept(value)
    found, given = {}, _checked(value, dict, where)
    for marked, inner in kept.items():
        name = marked.rstrip("!")
        if given.get(name) is not None:
            found[name] = projected(given[name], inner, f"{where}.{name}".lstrip("."))
        elif marked.endswith("!"):
            raise InputError(f"{where}.{name}: found none, expected one".lstrip("."))
    return found


def _checked(value: Any, expected: type, where: str) -> Any:
    if not isinstance(value, expected):
        found = _KINDS.get(type(value), type(value).__name__)
        raise InputError(f"{where or 'object'}: found {found}, expected {_KINDS[expected]}")
    return value
