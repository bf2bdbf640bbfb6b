"""Constraints between the devices of one claim.

dynamic-resource-allocation/structured/internal/incubating, allocator_incubating.go and
constraint.go, release 1.36.
"""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.scheduling.devices import Attribute, Device
from tensorfusion_dra.scheduling.requests import Wanted

UNSATISFIED: Final = "does not satisfy"
"""How the reason begins for which a device that fits alone does not fit beside the others."""


class Constraint:
    """All devices have the same value of an attribute, or no two have (distinctAttribute).

    Of the devices of one request, a distinctAttribute remembers only the latest, as in Kubernetes.

    Attributes:
        text: Name of the constraint in the reason why a device was rejected.
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._is_match: Final = entry.get("matchAttribute") is not None
        kind = "matchAttribute" if self._is_match else "distinctAttribute"
        self._attribute: Final[str] = entry[kind]
        self.text: Final = f"{kind} {self._attribute}"
        self._requests: Final = frozenset(entry.get("requests") or ())
        self._values: Final[dict[str | int, Attribute]] = {}

    def add(self, wanted: Wanted, device: Device) -> bool:
        """Add the device and return True, or return False if it violates the constraint."""
        if not self._concerns(wanted):
            return True
        value = device.attribute(self._attribute)
        if value is None or value.kind == "unsupported":
            return False
        if any((value == other) != self._is_match for other in self._values.values()):
            return False
        self._values[len(self._values) if self._is_match else wanted.main] = value
        return True

    def remove(self, wanted: Wanted) -> None:
        """Remove the device that was added last for a request."""
        if self._concerns(wanted):
            self._values.pop(len(self._values) - 1 if self._is_match else wanted.main, None)

    def _concerns(self, wanted: Wanted) -> bool:
        return not self._requests or bool(self._requests & {wanted.name, wanted.main})
