"""Devices of a ResourceSlice as the API server sees them: its rules, and how it stores them.

The rules are those of validation.go, Kubernetes 1.37.

One bad device makes the API server refuse its whole slice. The driver therefore checks devices by
these rules before it writes, and leaves bad ones out. They cover what the driver's own devices can
break; the simulated API server adds the rules for the fields that the driver does not use.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

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
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, as_maps

MAX_ENTRIES: Final = 32
"""Attributes and capacities together."""
MAX_TEXT_BYTES: Final = 64
"""Of a string attribute in UTF-8 (DeviceAttributeMaxValueLength)."""
MAX_TAINTS: Final = 16

TAINT_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")

_INT64: Final = range(-(2**63), 2**63)

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PRERELEASE: Final = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD: Final = r"[0-9A-Za-z-]+"
SEMVER: Final = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    rf"(?:-(?P<pre>{_PRERELEASE}(?:\.{_PRERELEASE})*))?(?:\+{_BUILD}(?:\.{_BUILD})*)?"
)
"""A version by semver 2.0.0."""

GATE_CONSUMABLE_CAPACITY: Final = "DRAConsumableCapacity"
GATE_DEVICE_TAINTS: Final = "DRADeviceTaints"
GATE_BINDING_CONDITIONS: Final = "DRADeviceBindingConditions"

_GATES: Final = (GATE_CONSUMABLE_CAPACITY, GATE_DEVICE_TAINTS, GATE_BINDING_CONDITIONS)

KUBERNETES_DROPS: Final = tuple(
    frozenset(gates) for size in range(1, len(_GATES) + 1) for gates in combinations(_GATES, size)
)
"""Sets of feature gates that may be off together, the smallest first."""

Devices = Sequence[Mapping[str, Any]]


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
    if entries > MAX_ENTRIES:
        text = f"the total number of attributes and capacities must not exceed {MAX_ENTRIES}"
        yield invalid(path, entries, text)
    yield from name_rules.all_qualified(f"{at}attributes", attributes)
    for key, attribute in attributes.items():
        yield from attribute_errors(f"{at}attributes[{key}]", attribute)
    shared = device.get("allowMultipleAllocations") is True
    yield from name_rules.all_qualified(f"{at}capacity", capacities)
    for key, capacity in capacities.items():
        yield from capacity_errors(f"{at}capacity[{key}]", capacity, shared=shared)
    taints = as_list(device.get("taints"))
    if len(taints) > MAX_TAINTS:
        yield too_many(f"{at}taints", len(taints), MAX_TAINTS)
        return
    for index, taint in enumerate(map(as_map, taints)):
        where = f"{at}taints[{index}]"
        yield from name_rules.label_key(f"{where}.key", taint.get("key", ""))
        if taint.get("value"):
            yield from name_rules.label_value(f"{where}.value", taint["value"])
        effect = taint.get("effect")
        if effect in (None, ""):
            yield required(f"{where}.effect")
        elif effect not in TAINT_EFFECTS:
            yield not_supported(f"{where}.effect", effect, TAINT_EFFECTS)


def attribute_errors(path: str, attribute: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield an error for a value of an attribute that is too large, too long or no version."""
    for kind in ("int", "string", "version"):
        yield from value_errors(f"{path}.{kind}", kind, attribute.get(kind))


def value_errors(path: str, kind: str, value: object) -> Iterator[FieldError]:
    """Yield the errors of one value; kind is int, bool, string or version."""
    if kind == "int" and value is not None and value not in _INT64:
        yield invalid(path, value, "must be a 64-bit integer")
    if kind in {"string", "version"} and isinstance(value, str):
        if kind == "version" and not SEMVER.fullmatch(value):
            yield invalid(path, value, "must be a string compatible with semver.org spec 2.0.0")
        if name_rules.size(value) > MAX_TEXT_BYTES:
            yield too_long(path, MAX_TEXT_BYTES)


def capacity_errors(
    path: str, capacity: Mapping[str, object], *, shared: bool
) -> Iterator[FieldError]:
    """Yield the rule violations of one capacity and of its range of requests.

    Args:
        shared: True if the device allows multiple allocations.
    """
    policy = as_map(capacity.get("requestPolicy"))
    if capacity.get("requestPolicy") is not None and not shared:
        yield forbidden(f"{path}.requestPolicy", "allowMultipleAllocations must be true")
    elif policy.get("validRange") is not None:
        total = quantity.parse(capacity.get("value") or "0")
        yield from _range_errors(f"{path}.requestPolicy", policy, total)


def _range_errors(path: str, policy: Mapping[str, object], total: Quantity) -> Iterator[FieldError]:
    valid_range = as_map(policy["validRange"])
    for field, value in (
        ("default", policy.get("default")),
        ("validRange.min", valid_range.get("min")),
    ):
        if value is None:
            yield required(f"{path}.{field}", "required when validRange is defined")
            return
    default, low = quantity.parse(policy["default"]), quantity.parse(valid_range["min"])
    high = quantity.parse(valid_range["max"]) if valid_range.get("max") is not None else None
    step = quantity.parse(valid_range["step"]) if valid_range.get("step") is not None else None
    rules = [
        (low <= total, "min", low, f"min is larger than capacity value: {total}"),
        (low <= default, "default", default, f"default is less than min: {low}"),
    ]
    if high is not None:
        rules += [
            (low <= high, "max", low, f"min is larger than max: {high}"),
            (high <= total, "max", high, f"max is larger than capacity value: {total}"),
            (default <= high, "default", default, f"default is more than max: {high}"),
        ]
    if step is not None and step.nano <= 0:
        rules += [(False, "step", step, "must be greater than zero")]
    elif step is not None:
        text = f"one step {low + step} is larger than capacity value: {total}"
        rules += [
            (low + step <= total, "step", step, text),
            (low.nano >= 0, "min", low, "must be greater than or equal to 0"),
        ]
    for holds, field, value, text in rules:
        if not holds:
            yield invalid(f"{path}.validRange.{field}", str(value), text)
    if step is None or step.nano <= 0 or low.nano < 0:
        return
    for amount in (default,) if high is None else (default, high):
        # Fractions are rounded up first, as Quantity.Value() does in Go.
        if (amount.ceil() - low.ceil()) % step.ceil() != 0:
            text = f"value is not a multiple of a given step ({step}) from ({low})"
            yield invalid(f"{path}.validRange.step", str(amount), text)


def normal(devices: Devices) -> list[object]:
    """Return the devices in a form that is equal wherever the API server sees no difference.

    Quantities become numbers, so that 1024Mi equals 1Gi. Empty fields are dropped, so that absent
    equals empty. The `timeAdded` of taints is dropped, because the API server sets it.
    """
    found: list[object] = []
    for device in devices:
        fields = {key: value for key, value in device.items() if value not in (None, [], {}, False)}
        if "capacity" in fields:
            fields["capacity"] = _normal_amounts(fields["capacity"])
        if "taints" in fields:
            fields["taints"] = [
                {key: value for key, value in taint.items() if key != "timeAdded"}
                for taint in fields["taints"]
            ]
        found.append(fields)
    return found


def same(some: Devices, others: Devices) -> bool:
    """Return True if the API server sees no difference between the devices."""
    return some == others or normal(some) == normal(others)


def without(devices: Devices, gates: frozenset[str]) -> list[Mapping[str, Any]]:
    """Return the devices as an API server with these feature gates off would store them."""
    if not gates:
        return list(devices)
    stored: list[Mapping[str, Any]] = []
    for device in devices:
        kept = dict(device)
        if GATE_CONSUMABLE_CAPACITY in gates:
            kept.pop("allowMultipleAllocations", None)
            kept["capacity"] = {
                name: {key: value for key, value in entry.items() if key != "requestPolicy"}
                for name, entry in (device.get("capacity") or {}).items()
            }
        if GATE_DEVICE_TAINTS in gates:
            kept.pop("taints", None)
        if GATE_BINDING_CONDITIONS in gates:
            kept.pop("bindingConditions", None)
            kept.pop("bindingFailureConditions", None)
        stored.append(kept)
    return stored


def _normal_amounts(value: object) -> object:
    """Return the same structure with every quantity as a number of billionths."""
    if isinstance(value, Mapping):
        return {key: _normal_amounts(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_normal_amounts(item) for item in value]
    try:
        return quantity.parse(value).nano
    except QuantityError:
        return value
