"""Constraints between the devices of one claim.

dynamic-resource-allocation/structured/internal/incubating, allocator_incubating.go and
constraint.go, release 1.36.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from tensorfusion_dra.simulator.allocator.devices import Attribute, Device
from tensorfusion_dra.simulator.allocator.requests import Wanted


class Constraint(Protocol):
    """A constraint and the devices that it has seen so far."""

    @property
    def text(self) -> str:
        """How it is named in a reason."""
        ...

    def add(self, wanted: Wanted, device: Device) -> bool:
        """Whether the device may join; if so, it has joined."""
        ...

    def remove(self, wanted: Wanted) -> None:
        """Takes the device that joined last for a request out again."""
        ...


def of(constraint: Mapping[str, Any]) -> Constraint:
    """The constraint of a claim's spec."""
    requests = frozenset(constraint.get("requests") or ())
    if constraint.get("matchAttribute") is not None:
        return _Match(constraint["matchAttribute"], requests)
    return _Distinct(constraint["distinctAttribute"], requests)


class _Match:
    """All devices have the same value."""

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
    """No device has the value of another request's device.

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
