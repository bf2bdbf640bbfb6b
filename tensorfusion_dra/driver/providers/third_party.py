"""Packages beside the driver: what one of their entry points registers, and its errors as text."""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LONGEST_TEXT: Final = 500
"""Length to which texts of other packages are cut."""

_REPR: Final = reprlib.Repr()
_REPR.maxother = LONGEST_TEXT


class Kind(StrEnum):
    """Kinds of what a package can add."""

    ATTRIBUTES = "attributes"
    CAPACITIES = "capacities"
    HEALTH = "health"
    ENFORCER = "enforcer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A provider or enforcer that can be loaded.

    Attributes:
        name: Name of its entry point.
        package: Name and version of its distribution; "" for the driver's own.
        load: Imports it and returns it; raises anything.
        unused: Why it is never loaded; "" if it is.
    """

    kind: Kind
    name: str
    load: Callable[[], object]
    package: str = ""
    unused: str = ""

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Whose it is, for the log."""
        return {"kind": self.kind.value, "provider": self.name, "package": self.package}


def error_text(error: BaseException) -> str:
    """Return an exception as text; one that cannot show itself as the name of its class."""
    return _REPR.repr(error)
