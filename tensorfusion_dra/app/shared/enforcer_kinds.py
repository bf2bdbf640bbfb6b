"""Enforcers by name: the driver's own, and those of installed packages.

Packages are looked for only if a name is none of the driver's own, so that a process with one of
these pays nothing.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Final

from tensorfusion_dra.app.shared import installed
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers.enforcer import EnforcerKind
from tensorfusion_dra.core.claims.enforcers.kinds import KINDS
from tensorfusion_dra.core.errors import InputError

OWN: Final = tuple(KINDS)


def check(name: str) -> None:
    """Check that there is an enforcer of this name.

    Raises:
        InputError: There is none.
    """
    if name not in KINDS and name not in (others := _of_packages()):
        expected = ", ".join((*OWN, *sorted(others)))
        raise InputError(f"enforcer: found {name!r}, expected one of {expected}")


def kind(name: str) -> type[EnforcerKind]:
    """Return the class of an enforcer; import it if it is another package's.

    Raises:
        InputError: There is none, or it cannot be imported.
    """
    if name in KINDS:
        return KINDS[name]
    check(name)
    try:
        found: Any = _of_packages()[name].load()
    except (Exception, SystemExit) as error:
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


def _of_packages() -> Mapping[str, EntryPoint]:
    found = sorted(installed.entry_points([names.ENFORCERS]), key=lambda each: each.package)
    return {each.entry.name: each.entry for each in reversed(found)}
