"""Macros: calls that bind names in their arguments (cel-spec, cel-go ext, optional types)."""

from typing import Final

from tensorfusion_dra.core.cel.syntax import Call, Name

_ONE_NAME: Final = frozenset(
    {
        ("all", 2),
        ("exists", 2),
        ("exists_one", 2),
        ("existsOne", 2),
        ("map", 2),
        ("map", 3),
        ("filter", 2),
        ("optMap", 2),
        ("optFlatMap", 2),
    }
)
_TWO_NAMES: Final = frozenset(
    {
        ("all", 3),
        ("exists", 3),
        ("existsOne", 3),
        ("transformList", 3),
        ("transformList", 4),
        ("transformMap", 3),
        ("transformMap", 4),
        ("transformMapEntry", 3),
        ("transformMapEntry", 4),
    }
)
OVER_MAPS: Final = frozenset(name for name, _ in _ONE_NAME | _TWO_NAMES if "opt" not in name)
"""Macros that iterate over lists and maps."""


def is_bind(call: Call) -> bool:
    """Return True if the call is ``cel.bind(name, value, result)``."""
    return (
        isinstance(call.target, Name)
        and call.target.token.text == "cel"
        and call.name.text == "bind"
        and len(call.arguments) == 3
    )


def is_has(call: Call) -> bool:
    """Return True if the call is ``has(field)``."""
    return call.target is None and call.name.text == "has" and len(call.arguments) == 1


def bound(call: Call) -> int:
    """Return how many leading arguments are names bound in the others; 0 if it is no macro.

    The name of ``cel.bind`` is not bound in its second argument.
    """
    if call.target is None:
        return 0
    shape = (call.name.text, len(call.arguments))
    if shape in _ONE_NAME or is_bind(call):
        return 1
    return 2 if shape in _TWO_NAMES else 0
