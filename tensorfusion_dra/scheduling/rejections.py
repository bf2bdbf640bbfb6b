"""Why a device is rejected for a request, in the order in which the search checks it.

The search decides; this only names the first check that fails, in more detail than the search
keeps: the part of a selector, the capacity, the taint.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import terms
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.cel.terms import Lookup, Term
from tensorfusion_dra.scheduling import cel_evaluation
from tensorfusion_dra.scheduling.cel_evaluation import CelRunError
from tensorfusion_dra.scheduling.devices import Device
from tensorfusion_dra.scheduling.requests import DeviceClass, Wanted
from tensorfusion_dra.scheduling.usage import Usage, shortage

_MISSING: Final = "missing"


class Cause(StrEnum):
    """Check that a device did not pass."""

    SELECTOR = "selector"
    CAPACITY = "capacity"
    """Too little is free."""
    AMOUNT = "amount"
    """The device has no such capacity, or its requestPolicy excludes the amount."""
    EXCLUSIVE = "exclusive"
    TAINT = "taint"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The first check of a request that a device did not pass.

    Attributes:
        subject: The same for all devices with this cause: a selector's term, the name of a
            capacity, a taint's key and value.
        text: With the values of this device.
    """

    cause: Cause
    subject: str
    text: str


def of_device(
    wanted: Wanted, device: Device, *, classes: Mapping[str, DeviceClass], usage: Usage
) -> Rejection | None:
    """Return why a device cannot be allocated to a request; None if it can.

    An unhealthy device of this driver has a taint and another `phase`. A selector on the phase
    comes first, but the reason is the taint, so the other checks come before it here.

    Raises:
        CelCompileError: A selector of the class or the request does not compile.
    """
    if device.needs:
        subject = ", ".join(device.needs)
        text = f"uses {subject}, which is not supported"
        return Rejection(cause=Cause.UNSUPPORTED, subject=subject, text=text)
    if usage.is_exclusive(device.id) and not wanted.is_admin:
        return Rejection(cause=Cause.EXCLUSIVE, subject="in use", text="in use exclusively")
    phase: Rejection | None = None
    for expression in (*classes[wanted.device_class].selectors, *wanted.selectors):
        for failed in _failed(expression, device):
            if not (_is_unhealthy(device) and _reads_phase(failed)):
                return failed
            phase = phase or failed
    short = shortage(wanted.amounts, device.capacity, usage.taken(device.id))
    if short is not None:
        cause = Cause.CAPACITY if short.is_allowed else Cause.AMOUNT
        return Rejection(cause=cause, subject=short.capacity, text=short.text)
    for taint in device.taints:
        if taint.repels and not wanted.tolerates(taint):
            return Rejection(cause=Cause.TAINT, subject=str(taint), text=f"tainted {taint}")
    return phase


def is_of_class(wanted: Wanted, device: Device, *, classes: Mapping[str, DeviceClass]) -> bool:
    """Return True if the class of a request selects a device.

    A device that the class excludes, such as a network card for a request of GPUs, is no candidate
    and needs no reason. One that it excludes only by its phase is unhealthy, and counts.

    Raises:
        CelCompileError: A selector of the class does not compile.
    """
    return all(
        _is_unhealthy(device) and _reads_phase(failed)
        for expression in classes[wanted.device_class].selectors
        for failed in _failed(expression, device)
    )


def _failed(expression: str, device: Device) -> Iterator[Rejection]:
    """Yield the smallest parts of a selector that exclude the device."""
    term = _term(expression)
    if term is not None:
        yield from failed_terms(term, device)
    elif not cel_evaluation.selector(expression).matches(device):
        yield Rejection(cause=Cause.SELECTOR, subject=expression, text=expression)


def _is_unhealthy(device: Device) -> bool:
    return any(taint.key == names.TAINT_UNHEALTHY for taint in device.taints)


def _reads_phase(failed: Rejection) -> bool:
    """Return True if the failed part of a selector depends on the device's phase alone."""
    term = _term(failed.subject)
    return term is not None and {each.name for each in term.lookups} == {names.ATTR_PHASE}


@lru_cache(maxsize=256)
def _term(expression: str) -> Term | None:
    """Return the parts of an expression; None if only Kubernetes' own parser can read it."""
    try:
        return terms.terms(expression)
    except CelError:
        return None


def result(term: Term, device: Device) -> bool | CelRunError:
    """Return whether a part of a selector is true for a device, or its error."""
    try:
        return cel_evaluation.selector(term.expression).matches(device)
    except CelRunError as error:
        return error


def failed_terms(term: Term, device: Device) -> Iterator[Rejection]:
    """Yield the smallest parts that make a term not true."""
    outcome = result(term, device)
    if outcome is True:
        return
    failing = [found for part in term.parts for found in failed_terms(part, device)]
    if term.operator in ("&&", "||") and failing:
        yield from failing
        return
    why = f": {outcome}" if isinstance(outcome, CelRunError) else ""
    found = [f"{lookup.name} {_value(lookup, device)}" for lookup in term.lookups]
    text = term.text + why + (f" ({', '.join(found)})" if found else "")
    yield Rejection(cause=Cause.SELECTOR, subject=term.text, text=text)


def values(lookup: Lookup, devices: Sequence[Device]) -> Counter[str]:
    """Return the number of devices by value of an attribute or capacity."""
    return Counter(_value(lookup, device) for device in devices)


def _value(lookup: Lookup, device: Device) -> str:
    qualified = f"{lookup.domain}/{lookup.name}"
    if lookup.map == terms.ATTRIBUTES:
        attribute = device.attribute(qualified)
        return _MISSING if attribute is None else _shown(attribute.value)
    capacity = device.capacity.get(qualified)
    if capacity is None and lookup.domain == device.id.driver:
        capacity = device.capacity.get(lookup.name)
    return _MISSING if capacity is None else str(capacity.value)


def _shown(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if value == "" else str(value)
