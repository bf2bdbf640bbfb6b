"""Devices of a ResourceSlice as the API server sees them: its rules, and how it stores them.

The rules are those of validation.go, Kubernetes 1.37.

One bad device makes the API server refuse its whole slice. The driver's own part of a device cannot
break a rule. What other packages add to it is checked by these rules; the simulated API server
(dra_simulator/api/object_rules.py) has them all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from tensorfusion_dra.core.kubernetes import name_rules, quantity, releases
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    invalid,
    required,
    too_long,
)
from tensorfusion_dra.core.kubernetes.quantity import MILLI, NANO, QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import as_map, map_at

MAX_ENTRIES: Final = 32
"""Attributes and capacities together."""
MAX_TEXT_BYTES: Final = 64
_INT64: Final = range(-(2**63), 2**63)

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PRERELEASE: Final = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD: Final = r"[0-9A-Za-z-]+"
SEMVER: Final = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    rf"(?:-(?P<pre>{_PRERELEASE}(?:\.{_PRERELEASE})*))?(?:\+{_BUILD}(?:\.{_BUILD})*)?"
)
"""A version by semver 2.0.0."""
_SHORT_SEMVER: Final = re.compile(SEMVER.pattern.replace(_NUMBER, r"(?:0|[1-9][0-9]{0,17})"))
"""A version whose numbers have at most 18 digits, also those of a pre-release."""

GATE_CONSUMABLE_CAPACITY: Final = "DRAConsumableCapacity"
GATE_DEVICE_TAINTS: Final = "DRADeviceTaints"
GATE_BINDING_CONDITIONS: Final = "DRADeviceBindingConditions"

_GATES: Final = (GATE_CONSUMABLE_CAPACITY, GATE_DEVICE_TAINTS, GATE_BINDING_CONDITIONS)

KUBERNETES_DROPS: Final = tuple(
    frozenset(gates) for size in range(1, len(_GATES) + 1) for gates in combinations(_GATES, size)
)
"""Sets of feature gates that may be off together, the smallest first."""

Devices = Sequence[Mapping[str, Any]]


def attribute_errors(
    path: str, attribute: Mapping[str, object], release: int = releases.NEWEST
) -> Iterator[FieldError]:
    """Yield an error for a value of an attribute that is too large, too long or no version."""
    for kind in ("int", "string", "version"):
        yield from value_errors(f"{path}.{kind}", kind, attribute.get(kind), release)


def value_errors(path: str, kind: str, value: object, release: int) -> Iterator[FieldError]:
    """Yield the errors of one value.

    Args:
        kind: int, bool, string or version.
        release: Minor version of Kubernetes. What a newer one accepts, older ones accept, too.
    """
    if kind == "int" and value is not None and value not in _INT64:
        yield invalid(path, value, "must be a 64-bit integer")
    if kind in {"string", "version"} and isinstance(value, str):
        is_strict = release >= releases.STRICT_API
        if kind == "version" and not (_SHORT_SEMVER if is_strict else SEMVER).fullmatch(value):
            text = "must be a string compatible with semver.org spec 2.0.0"
            yield invalid(path, value, text + ", with at most 18 digits in numbers" * is_strict)
        if name_rules.size(value) > MAX_TEXT_BYTES:
            yield too_long(path, MAX_TEXT_BYTES)


def capacity_errors(
    path: str, capacity: Mapping[str, object], units: Sequence[int] = (NANO, MILLI)
) -> Iterator[FieldError]:
    """Yield the rule violations of one capacity's range of requests.

    Args:
        units: In which amounts with a fraction are computed: whole numbers until Kubernetes 1.37,
            thousandths from 1.38 on (gate DRAFractionalCapacityRange). By default both, so that
            every release stores the capacity.
    """
    policy, path = as_map(capacity.get("requestPolicy")), f"{path}.requestPolicy"
    if policy.get("validRange") is None:
        return
    total, valid_range = quantity.parse(capacity.get("value") or "0"), as_map(policy["validRange"])
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
    given = {"default": default, "min": low, "max": high, "step": step}
    amounts = {field: amount for field, amount in given.items() if amount is not None}
    has_fraction = any(amount.nano % NANO for amount in amounts.values())
    finer = {
        field: amount
        for field, amount in amounts.items()
        if has_fraction and MILLI in units and not amount.is_whole(MILLI)
    }
    for field, amount in finer.items():
        text = "value cannot be represented as a milli value"
        yield invalid(f"{path}.validRange.{field}", str(amount), text)
    if finer or step is None or step.nano <= 0 or low.nano < 0:
        return
    for amount in (default,) if high is None else (default, high):
        if any(
            (amount.ceil(unit) - low.ceil(unit)) % step.ceil(unit)
            for unit in (units if has_fraction else (NANO,))
        ):
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


def rule_taints(
    rules: Iterable[Mapping[str, Any]], *, driver: str, pool: str, device: str
) -> list[Mapping[str, Any]]:
    """Return the taints that DeviceTaintRules add to a device, in the rules' order.

    Without a selector a rule matches no device; with an empty one, all.

    Source: dynamic-resource-allocation/resourceslice/tracker/tracker.go (applyPatches), release
    1.37.
    """
    wanted = {"driver": driver, "pool": pool, "device": device}
    return [
        map_at(rule, "spec", "taint")
        for rule in rules
        if (selector := map_at(rule, "spec").get("deviceSelector")) is not None
        and all(as_map(selector).get(key, value) == value for key, value in wanted.items())
    ]
