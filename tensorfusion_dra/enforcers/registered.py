"""Enforcers by name: the driver's own, and those of installed packages.

The driver's own are registered in the same form as those of other packages, by entry points, so
that only those that a process uses are imported. Packages are looked for only if a name is none of
the driver's own, so that a process with one of these pays nothing.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.errors import InputError

AUTO: Final = "auto"
"""Value of the setting `enforcer`: the first of the driver's own that is there."""
_OWN: Final = {
    name: EntryPoint(name, f"tensorfusion_dra.enforcers.{value}", names.ENFORCERS)
    for name, value in (
        ("nvidia", "nvidia.enforcer:Nvidia"),
        ("tensor-fusion", "tensor_fusion.enforcer:TensorFusion"),
        ("hami-core", "hami_core.enforcer:HamiCore"),
        ("mps", "mps.enforcer:Mps"),
        ("none", "none:NoEnforcer"),
    )
}
OWN: Final = tuple(_OWN)


def kind(name: str) -> type[Enforcer]:
    """Import the class of an enforcer, and return it.

    Raises:
        InputError: There is none, or it cannot be imported.
    """
    try:
        return checked(name, entry_point(name).load())
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # code of another package
        raise InputError(f"enforcer: {name}: {error!r}") from error


def checked(name: str, found: object) -> type[Enforcer]:
    """Return what an entry point names if it is the class of this enforcer.

    Raises:
        TypeError: It is something else.
    """
    is_it = isinstance(found, type) and issubclass(found, Enforcer)
    if not is_it or getattr(found, "name", None) != name:
        raise TypeError(f"found {found!r}, expected a subclass of Enforcer with the name {name}")
    return cast("type[Enforcer]", found)


def entry_point(name: str) -> EntryPoint:
    """Return the entry point with this name; of several, that of the first package by name.

    Raises:
        InputError: There is none.
    """
    if name in _OWN:
        return _OWN[name]
    found = sorted(
        entry_points(group=names.ENFORCERS), key=lambda each: each.dist.name if each.dist else ""
    )
    of_name = [each for each in found if each.name == name]
    if not of_name:
        expected = ", ".join((*OWN, *sorted({each.name for each in found})))
        raise InputError(f"enforcer: found {name!r}, expected one of {expected}")
    return of_name[0]
