"""Enforcers by name: the driver's own, and those of installed packages.

Packages are looked for only if a name is none of the driver's own, so that a process with one of
these pays nothing.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import EnforcerKind
from tensorfusion_dra.enforcers.registered import KINDS
from tensorfusion_dra.core.errors import InputError

OWN: Final = tuple(KINDS)


def check(name: str) -> None:
    """Check that there is an enforcer of this name.

    Raises:
        InputError: There is none.
    """
    if name not in KINDS:
        _entry_point(name)


def kind(name: str) -> type[EnforcerKind]:
    """Return the class of an enforcer; import it if it is another package's.

    Raises:
        InputError: There is none, or it cannot be imported.
    """
    if name in KINDS:
        return KINDS[name]
    try:
        found: Any = _entry_point(name).load()
    except (Exception, SystemExit) as error:  # code of another package
        raise InputError(f"enforcer: {name}: {error!r}") from error
    if not isinstance(found, type) or getattr(found, "name", None) != name:
        raise InputError(f"enforcer: {name}: found {found!r}, expected a class with this name")
    return found


def enforces_hard(name: str) -> bool:
    """Return True if the enforcer brings a limiter for hard isolation.

    Raises:
        InputError: See kind().
    """
    return bool(getattr(kind(name), "enforces_hard", False))


def expands_memory(name: str) -> bool:
    """Return True if the enforcer can extend a card's memory by the host's.

    Raises:
        InputError: See kind().
    """
    return bool(getattr(kind(name), "expands_memory", False))


def _entry_point(name: str) -> EntryPoint:
    """Return the entry point with this name; of several, that of the first package by name."""
    found = sorted(
        entry_points(group=names.ENFORCERS), key=lambda each: each.dist.name if each.dist else ""
    )
    of_name = [each for each in found if each.name == name]
    if not of_name:
        expected = ", ".join((*OWN, *sorted({each.name for each in found})))
        raise InputError(f"enforcer: found {name!r}, expected one of {expected}")
    return of_name[0]
