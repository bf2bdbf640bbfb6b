"""The API server's rules for one device of a ResourceSlice (validation.go, Kubernetes 1.37).

One bad device makes the API server refuse its whole slice. The driver therefore checks devices by
these rules before it writes, and leaves bad ones out. They cover what the driver's own devices can
break; the simulated API server adds the rules for the fields that the driver does not use.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tensorfusion_dra.core.kubernetes import name_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, as_maps

MOST_ENTRIES: Final = 32
"""Attributes and capacities together."""
MOST_TEXT_BYTES: Final = 64
MOST_TAINTS: Final = 16

TAINT_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")

_INT64: Final = range(-(2**63), 2**63)

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PRERELEASE: Final = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD: Final = r"[0-9A-Za-z-]+"
_SEMVER: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?(?:\+{_BUILD}(?:\.{_BUILD})*)?"
)


def violations(device: Mapping[str, object]) -> tuple[str, ...]:
    """Return the API server's reasons for refusing a device; empty if it would accept it.

    Paths are relative to the device: ``attributes[model].string: Too long: ...``.
    """
    return tuple(str(error) for error in device_errors("", device))


def device_errors(path: str, device: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield the rule violations of a device.

    Args:
        path: Prefix of every error's path, joined with a dot; "" for none.
    """
    at = f"{path}." if path else ""
    yield from name_rules.label(f"{at}name", device.get("name"))
    attributes = as_maps(device.get("attributes"))
    capacities = as_maps(device.get("capacity"))
    entries = len(attributes) + len(capacities)
    if entries > MOST_ENTRIES:
        text = f"the total number of attributes and capacities must not exceed {MOST_ENTRIES}"
        yield invalid(path, entries, text)
    yield from name_rules.all_qualified(f"{at}attributes", attributes)
    for key, attribute in attributes.items():
        yield from attribute_errors(f"{at}attributes[{key}]", attribute)
    shared = device.get("allowMultipleAllocations") is True
    yield from name_rules.all_qualified(f"{at}capacity", capacities)
    for key, capacity in capacities.items():
        yield from capacity_errors(f"{at}capacity[{key}]", capacity, shared=shared)
    yield from _taints_errors(f"{at}taints", as_list(device.get("taints")))


def attribute_errors(path: str, attribute: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield an error for a value of an attribute that is too large, too long or no version."""
    for kind in ("int", "string", "version"):
        yield from value_errors(f"{path}.{kind}", kind, attribute.get(kind))


def value_errors(path: str, kind: str, value: object) -> Iterator[FieldError]:
    """Yield the errors of one value; kind is int, bool, string or version."""
    if kind == "int" and value is not None and value not in _INT64:
        yield invalid(path, value, "must be a 64-bit integer")
    if kind in {"string", "version"} and isinstance(value, str):
        if kind == "version" and not _SEMVER.fullmatch(value):
            yield invalid(path, value, "must be a string compatible with semver.org spec 2.0.0")
        if name_rules.size(value) > MOST_TEXT_BYTES:
            yield too_long(path, MOST_TEXT_BYTES)


def capacity_errors(
    path: str, capacity: Mapping[str, object], *, shared: bool
) -> Iterator[FieldError]:
    """Yield the rule violations of one capacity and of its range of requests.

    Args:
        shared: True if the device allows multiple allocations.
    """
    policy = capacity.get("requestPolicy")
    if policy is not None and not shared:
        yield forbidden(f"{path}.requestPolicy", "allowMultipleAllocations must be true")
        return
    valid_range = as_map(policy).get("validRange")
    if valid_range is not None:
        total = quantity.parse(capacity["value"])
        yield from _range_errors(
            f"{path}.requestPolicy", as_map(policy).get("default"), as_map(valid_range), total
        )


def _taints_errors(path: str, taints: list[object]) -> Iterator[FieldError]:
    if len(taints) > MOST_TAINTS:
        yield too_many(path, len(taints), MOST_TAINTS)
        return
    for index, found in enumerate(taints):
        where, taint = f"{path}[{index}]", as_map(found)
        yield from name_rules.label_key(f"{where}.key", taint.get("key", ""))
        if taint.get("value"):
            yield from name_rules.label_value(f"{where}.value", taint["value"])
        effect = taint.get("effect")
        if effect in (None, ""):
            yield required(f"{where}.effect")
        elif effect not in TAINT_EFFECTS:
            yield not_supported(f"{where}.effect", effect, TAINT_EFFECTS)


def _range_errors(
    path: str, default: object, valid_range: Mapping[str, object], total: Quantity
) -> Iterator[FieldError]:
    where = f"{path}.validRange"
    if default is None:
        yield required(f"{path}.default", "required when validRange is defined")
        return
    if valid_range.get("min") is None:
        yield required(f"{where}.min", "required when validRange is defined")
        return
    wanted = quantity.parse(default)
    least = quantity.parse(valid_range["min"])
    most = _parsed(valid_range.get("max"))
    step = _parsed(valid_range.get("step"))
    if least > total:
        yield invalid(f"{where}.min", str(least), f"min is larger than capacity value: {total}")
    if wanted < least:
        yield invalid(f"{where}.default", str(wanted), f"default is less than min: {least}")
    if most is not None:
        here = f"{where}.max"
        if least > most:
            yield invalid(here, str(least), f"min is larger than max: {most}")
        if most > total:
            yield invalid(here, str(most), f"max is larger than capacity value: {total}")
        if wanted > most:
            yield invalid(f"{where}.default", str(wanted), f"default is more than max: {most}")
    if step is not None:
        here = f"{where}.step"
        if step <= Quantity(0):
            yield invalid(here, str(step), "must be greater than zero")
            return
        if least + step > total:
            text = f"one step {least + step} is larger than capacity value: {total}"
            yield invalid(here, str(step), text)
        if least < Quantity(0):
            yield invalid(f"{where}.min", str(least), "must be greater than or equal to 0")
            return
        amounts = [wanted] if most is None else [wanted, most]
        yield from _step_errors(here, amounts, least=least, step=step)


def _step_errors(
    path: str, amounts: list[Quantity], *, least: Quantity, step: Quantity
) -> Iterator[FieldError]:
    """Yield an error for each amount that is not a whole number of steps above the least.

    Fractions are rounded up first, as Quantity.Value() does in Go.
    """
    for amount in amounts:
        if (amount.ceil() - least.ceil()) % step.ceil() != 0:
            text = f"value is not a multiple of a given step ({step}) from ({least})"
            yield invalid(path, str(amount), text)


def _parsed(text: object) -> Quantity | None:
    return None if text is None else quantity.parse(text)
