"""Constraints between the devices of one claim.

dynamic-resource-allocation/structured/internal/incubating, allocator_incubating.go and
constraint.go, release 1.36.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from tensorfusion_dra.scheduling.devices import Attribute, Device
from tensorfusion_dra.scheduling.requests import Wanted

UNSATISFIED: Final = "does not satisfy"
"""How the reason begins for which a device that fits alone does not fit beside the others."""


class Constraint(Protocol):
    """A constraint, with the devices that have joined it so far."""

    @property
    def text(self) -> str:
        """Name of the constraint in the reason why a device was rejected."""
        ...

    def add(self, wanted: Wanted, device: Device) -> bool:
        """Add the device and return True, or return False if it violates the constraint."""
        ...

    def remove(self, wanted: Wanted) -> None:
        """Remove the device that was added last for a request."""
        ...


def of(constraint: Mapping[str, Any]) -> Constraint:
    """Return the constraint for one entry of a claim's spec."""
    requests = frozenset(constraint.get("requests") or ())
    if constraint.get("matchAttribute") is not None:
        return _Match(constraint["matchAttribute"], requests)
    return _Distinct(constraint["distinctAttribute"], requests)


class _Match:
    """A constraint that all devices have the same value of an attribute."""

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        self.text: Final = f"matchAttribute {attribute}"
        self._attribute: Final = attribute
        self._requests: Final = requests
        self._values: list[Attribute] = []

    def add(self, wanted: Wanted, device: Device) -> bool:
        if not _concerns(self._requests, wanted):
            return True
        value = device.attribute(self._attribute)
        if value is None or value.kind == "unsupported":
            return False
        if self._values and value != self._values[0]:
            return False
        self._values.append(value)
        return True

    def remove(self, wanted: Wanted) -> None:
        if _concerns(self._requests, wanted):
            self._values.pop()


class _Distinct:
    """A constraint that no two devices have the same value of an attribute.

    Of the devices of one request, only the latest is remembered, as in Kubernetes.
    """

    def __init__(self, attribute: str, requests: frozenset[str]) -> None:
        self.text: Final = f"distinctAttribute {attribute}"
        self._attribute: Final = attribute
        self._requests: Final = requests
        self._values: dict[str, Attribute] = {}

    def add(self, wanted: Wanted, device: Device) -> bool:
        if not _concerns(self._requests, wanted):
            return True
        value = device.attribute(self._attribute)
        if value is None or value.kind == "unsupported" or value in self._values.values():
            return False
        self._values[wanted.main] = value
        return True

    def remove(self, wanted: Wanted) -> None:
        if _concerns(self._requests, wanted):
            self._values.pop(wanted.main, None)


def _concerns(requests: frozenset[str], wanted: Wanted) -> bool:
    return not requests or bool(requests & {wanted.name, wanted.main})
