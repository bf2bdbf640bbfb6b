"""Evaluation of a selector on devices, part by part, with the reasons that exclude each device."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorfusion_dra.core.cel import terms
from tensorfusion_dra.core.cel.terms import Lookup, Term
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import cel_evaluation, consumable_capacity
from tensorfusion_dra.scheduling.cel_evaluation import CelRunError
from tensorfusion_dra.scheduling.devices import Device
from tensorfusion_dra.scheduling.usage import Usage

MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTerm:
    """A part of a selector, evaluated on all devices.

    Attributes:
        passing: Number of devices for which it is true.
        values: Number of devices by value, for each attribute or capacity that it reads.
    """

    text: str
    operator: str
    passing: int
    values: Mapping[str, Counter[str]]
    parts: tuple["TracedTerm", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTerm:
    """A smallest part of a selector that is not true for a device.

    Attributes:
        term: Its text.
        found: The values of the device that it reads, or its error.
    """

    term: str
    found: str

    def __str__(self) -> str:
        return f"{self.term}{self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDevice:
    """A device, with the result of the selector.

    Attributes:
        reasons: Parts of the selector that exclude it; empty if none does.
        refusal: Why it cannot provide the requested amounts; None if it can.
        error: Set if the selector fails on it, which stops the scheduling of the pod.
    """

    device: Device
    reasons: tuple[str, ...]
    refusal: str | None = None
    error: str | None = None

    @property
    def matches(self) -> bool:
        """Return True if nothing excludes the device."""
        return not self.reasons and self.refusal is None


def traced_term(term: Term, devices: Sequence[Device]) -> TracedTerm:
    """Evaluate a term and its parts on all devices."""
    return TracedTerm(
        text=term.text,
        operator=term.operator,
        passing=sum(_holds(term, device) is True for device in devices),
        values={
            lookup.name: Counter(_value(lookup, device) for device in devices)
            for lookup in term.lookups
        },
        parts=tuple(traced_term(part, devices) for part in term.parts),
    )


def traced_device(
    term: Term, device: Device, *, requests: Mapping[str, Quantity], usage: Usage
) -> TracedDevice:
    """Evaluate a term on one device.

    Args:
        requests: Amounts by capacity that the claim requests as well; none are checked if empty.
        usage: Use of the devices by allocated claims.
    """
    result = _holds(term, device)
    return TracedDevice(
        device=device,
        reasons=tuple(dict.fromkeys(map(str, failed_terms(term, device)))),
        refusal=_refusal(device, requests, usage) if requests else None,
        error=str(result) if isinstance(result, CelRunError) else None,
    )


def _refusal(device: Device, requests: Mapping[str, Quantity], usage: Usage) -> str | None:
    if not device.is_shared:
        return "cannot be shared"
    if usage.is_exclusive(device.id):
        return "a claim has it exclusively"
    return consumable_capacity.refusal(requests, device.capacity, usage.taken(device.id))


def _holds(term: Term, device: Device) -> bool | CelRunError:
    try:
        return cel_evaluation.selector(term.expression).matches(device)
    except CelRunError as error:
        return error


def failed_terms(term: Term, device: Device) -> Iterator[FailedTerm]:
    """Yield the smallest parts that make a term not true."""
    result = _holds(term, device)
    if result is True:
        return
    failing = [found for part in term.parts for found in failed_terms(part, device)]
    if term.operator in ("&&", "||") and failing:
        yield from failing
        return
    why = f": {result}" if isinstance(result, CelRunError) else ""
    values = [f"{lookup.name} {_value(lookup, device)}" for lookup in term.lookups]
    yield FailedTerm(term=term.text, found=why + (f" ({', '.join(values)})" if values else ""))


def _value(lookup: Lookup, device: Device) -> str:
    qualified = f"{lookup.domain}/{lookup.name}"
    if lookup.map == terms.ATTRIBUTES:
        attribute = device.attribute(qualified)
        return MISSING if attribute is None else _attribute(attribute.value)
    capacity = device.capacity.get(qualified)
    if capacity is None and lookup.domain == device.id.driver:
        capacity = device.capacity.get(lookup.name)
    return MISSING if capacity is None else str(capacity.value)


def _attribute(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if value == "" else str(value)
