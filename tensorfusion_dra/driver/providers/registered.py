"""Providers as they are registered: by this driver, or by another package's entry point."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of providers."""

    ATTRIBUTES = "attributes"
    CAPACITIES = "capacities"
    HEALTH = "health"
    ENFORCER = "enforcer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A provider that can be loaded.

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
    def is_own(self) -> bool:
        """True for the driver's own: it is trusted, and called without a thread."""
        return not self.package

    @property
    def log_fields(self) -> Mapping[str, str]:
        """Whose it is, for the log; the driver's own has no package."""
        package = {"package": self.package} if self.package else {}
        return {"kind": self.kind.value, "provider": self.name, **package}
