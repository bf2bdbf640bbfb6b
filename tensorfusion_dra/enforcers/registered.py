"""Enforcers by name: the driver's own, and those of installed packages.

Of the driver's own, every process imports the declarations, and only those classes that it uses.
Packages are looked for only if a name is none of the driver's own, so that a process with one of
these pays nothing.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.claims.enforcer import Enforcer, EnforcerFacts
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.enforcers import none
from tensorfusion_dra.enforcers.declaration import Declaration
from tensorfusion_dra.enforcers.hami_core.declaration import HAMI_CORE
from tensorfusion_dra.enforcers.mps.declaration import MPS
from tensorfusion_dra.enforcers.nvidia.declaration import NVIDIA
from tensorfusion_dra.enforcers.tensor_fusion.declaration import TENSOR_FUSION

DECLARED: Final[Mapping[str, Declaration]] = {
    each.name: each
    for each in (
        NVIDIA,
        TENSOR_FUSION,
        HAMI_CORE,
        MPS,
        none.DECLARATION,
    )
}
"""The driver's own, in the order in which `auto` looks for them."""
OWN: Final = tuple(DECLARED)
AUTO: Final = "auto"
"""Value of the setting `enforcer`: IN_AUTO, of which the first that is there is used."""
IN_AUTO: Final = tuple(name for name, each in DECLARED.items() if each.in_auto)
SIMULATED: Final = next(name for name, each in DECLARED.items() if each.is_simulated)
NONE: Final = none.DECLARATION.name


BYPASSES: Final = frozenset(name for each in DECLARED.values() for name in each.bypasses)
"""Variables by which a container could evade the limits of one of the driver's own."""


def names_with(fact: str) -> Sequence[str]:
    """Return the names of the driver's own for which a fact is true."""
    return [name for name, each in DECLARED.items() if getattr(each.facts, fact)]


HARD_NEEDS: Final = (
    f"an enforcer that brings one ({', '.join(names_with('enforces_hard'))}), or "
    f"{isolation.HARD_NEEDS}"
)
"""What isolation hard needs on a node whose enforcer brings no limiter for it."""


def facts(name: str) -> EnforcerFacts:
    """Return the facts of an enforcer; import it only if it is another package's.

    Raises:
        InputError: There is none, or it cannot be imported.
    """
    return DECLARED[name].facts if name in DECLARED else kind(name).facts


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
    if own := DECLARED.get(name):
        return EntryPoint(name, f"{__package__}.{own.path}", names.ENFORCERS)
    found = sorted(
        entry_points(group=names.ENFORCERS), key=lambda each: each.dist.name if each.dist else ""
    )
    of_name = [each for each in found if each.name == name]
    if not of_name:
        expected = ", ".join((*OWN, *sorted({each.name for each in found})))
        raise InputError(f"enforcer: found {name!r}, expected one of {expected}")
    return of_name[0]
