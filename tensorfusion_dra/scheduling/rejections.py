"""Why a device is rejected for a request, in the order in which the search checks it.

The search decides; this only names the first check that fails, in more detail than the search
keeps: the part of a selector, the capacity, the taint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import terms
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.cel.terms import Term
from tensorfusion_dra.scheduling import cel_evaluation, consumable_capacity, selector_trace
from tensorfusion_dra.scheduling.devices import Device
from tensorfusion_dra.scheduling.requests import DeviceClass, Wanted
from tensorfusion_dra.scheduling.usage import Usage


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
    short = consumable_capacity.shortage(wanted.amounts, device.capacity, usage.taken(device.id))
    if short is not None:
        cause = Cause.CAPACITY if short.is_allowed else Cause.AMOUNT
        return Rejection(cause=cause, subject=short.capacity, text=short.text)
    for taint in device.taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not wanted.tolerates(taint):
            subject = f"{taint.key}={taint.value}" if taint.value else taint.key
            return Rejection(cause=Cause.TAINT, subject=subject, text=f"tainted {subject}")
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
        for failed in selector_trace.failed_terms(term, device):
            yield Rejection(cause=Cause.SELECTOR, subject=failed.term, text=str(failed))
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
