"""Requests of a claim, and the device classes that they name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling.devices import SchedulingError, Taint


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request, or one of its alternatives (subrequests).

    Attributes:
        name: ``main`` or ``main/sub``.
        main: The request's own name.
        count: Number of devices; None for all that match.
        amounts: Requested amount of each capacity that the request names.
    """

    name: str
    main: str
    device_class: str
    count: int | None = 1
    selectors: tuple[str, ...] = ()
    amounts: Mapping[str, Quantity] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    is_admin: bool = False

    def tolerates(self, taint: Taint) -> bool:
        """Return True if the request tolerates the taint."""
        return any(_tolerates(toleration, taint) for toleration in self.tolerations)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """Requests, constraints and configuration of one claim.

    Attributes:
        text: Namespace and name, for error texts.
        requests: Alternatives of each request; the search takes the first that fits.
    """

    text: str
    requests: tuple[tuple[Wanted, ...], ...]
    constraints: tuple[Mapping[str, Any], ...] = ()
    config: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """One DeviceClass."""

    name: str
    selectors: tuple[str, ...] = ()
    config: tuple[Mapping[str, Any], ...] = ()


def class_of(document: Mapping[str, Any]) -> DeviceClass:
    """Parse a DeviceClass."""
    spec = document.get("spec") or {}
    return DeviceClass(
        name=document["metadata"]["name"],
        selectors=_expressions(spec.get("selectors") or ()),
        config=tuple(spec.get("config") or ()),
    )


def claim_of(document: Mapping[str, Any]) -> ClaimSpec:
    """Parse the spec of a ResourceClaim.

    Raises:
        SchedulingError: A request is of a type that this allocator does not know.
    """
    metadata = document["metadata"]
    devices = (document.get("spec") or {}).get("devices") or {}
    text = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return ClaimSpec(
        text=text,
        requests=tuple(_alternatives(text, entry) for entry in devices.get("requests") or ()),
        constraints=tuple(devices.get("constraints") or ()),
        config=tuple(devices.get("config") or ()),
    )


def _alternatives(claim: str, request: Mapping[str, Any]) -> tuple[Wanted, ...]:
    main = request["name"]
    if request.get("exactly"):
        return (_wanted(main, main, request["exactly"]),)
    if request.get("firstAvailable"):
        return tuple(
            _wanted(f"{main}/{sub['name']}", main, sub) for sub in request["firstAvailable"]
        )
    raise SchedulingError(f"resource claim {claim}, request {main}: unknown request type")


def _wanted(name: str, main: str, request: Mapping[str, Any]) -> Wanted:
    mode = request.get("allocationMode") or "ExactCount"
    amounts = (request.get("capacity") or {}).get("requests") or {}
    return Wanted(
        name=name,
        main=main,
        device_class=request["deviceClassName"],
        count=None if mode == "All" else request.get("count") or 1,
        selectors=_expressions(request.get("selectors") or ()),
        amounts={key: quantity.parse(text) for key, text in amounts.items()},
        tolerations=tuple(request.get("tolerations") or ()),
        is_admin=bool(request.get("adminAccess")),
    )


def _expressions(selectors: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(selector["cel"]["expression"] for selector in selectors)


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """Return True if the toleration matches the taint.

    dynamic-resource-allocation/resourceclaim/devicetoleration.go.
    """
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    if toleration.get("key") and toleration["key"] != taint.key:
        return False
    operator = toleration.get("operator") or "Equal"
    return operator == "Exists" or (
        operator == "Equal" and toleration.get("value", "") == taint.value
    )
