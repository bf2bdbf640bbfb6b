"""The API server's rules for a ResourceSlice (resource/validation.go, Kubernetes 1.36).

Those for single fields are in rules, and those for names, values, ranges of capacity and taints of
devices are the driver's own (core.kubernetes.device_rules).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from dra_simulator.api import rules
from dra_simulator.api.rules import SCHEMA
from dra_simulator.api.schema import elements, part
from tensorfusion_dra.core.kubernetes import device_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    too_many,
)
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import as_list

Json = dict[str, object]

MOST_DEVICES: Final = 128
MOST_DEVICES_ADVANCED: Final = 64
"""If any device of the slice has taints, consumed counters or an attribute that is a list."""
MOST_VALUES: Final = 48
"""Attribute values of a device; each item of a list counts."""
MOST_VALID_VALUES: Final = 10

_SCALARS: Final = ("int", "bool", "string", "version")
_LISTS: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_NODE_FIELDS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def violations(spec: Mapping[str, object]) -> tuple[str, ...]:
    """Return the API server's reasons for refusing a ResourceSlice; empty if it would accept it."""
    return tuple(str(error) for error in slice_errors(dict(spec)))


def slice_errors(spec: Json) -> Iterator[FieldError]:
    """Yield every rule violation of a ResourceSlice's spec."""
    devices = list(elements(spec.get("devices")))
    most = MOST_DEVICES_ADVANCED if any(map(_is_advanced, devices)) else MOST_DEVICES
    if len(devices) > most:
        yield too_many("spec.devices", len(devices), most)
        return
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    for struct, at, found in SCHEMA.walk("ResourceSliceSpec", spec, "spec"):
        yield from rules.errors(struct, found, at)
        match struct:
            case "ResourceSliceSpec":
                yield from _node_errors(at, found, _NODE_FIELDS)
                terms = as_list(part(found, "nodeSelector").get("nodeSelectorTerms"))
                if len(terms) > 1:
                    text = "must have exactly one node selector term"
                    yield invalid(f"{at}.nodeSelector.nodeSelectorTerms", terms, text)
            case "ResourcePool":
                yield from _pool_errors(at, found)
            case "Device":
                yield from device_rules.device_errors(at, found)
                yield from _device_errors(at, found)
                if spec.get("perDeviceNodeSelection") is True:
                    yield from _node_errors(at, found, _NODE_FIELDS[:3])
                elif any(found.get(name) is not None for name in _NODE_FIELDS):
                    yield invalid(
                        at,
                        None,
                        "`nodeName`, `nodeSelector` and `allNodes` can only be set if"
                        " `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
                    )


def _pool_errors(path: str, pool: Json) -> Iterator[FieldError]:
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    assert isinstance(count, int)
    assert isinstance(generation, int)
    if count <= 0:
        yield invalid(f"{path}.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        text = "must be greater than or equal to zero"
        yield invalid(f"{path}.generation", generation, text)


def _node_errors(path: str, found: Json, fields: tuple[str, ...]) -> Iterator[FieldError]:
    """Yield an error unless exactly one of the fields selects nodes."""
    present = [name for name in fields if found.get(name) is not None]
    for name in present:
        if found[name] in ("", False):
            yield invalid(f"{path}.{name}", found[name], "must be unset or select nodes")
    expected = f"exactly one of {', '.join(f'`{name}`' for name in fields)} is required"
    if not present:
        yield required(path, expected)
    elif len(present) > 1:
        listed = "{" + ", ".join(f"`{name}`" for name in present) + "}"
        yield invalid(path, listed, f"{expected}, but multiple fields are set")


def _is_advanced(device: Json) -> bool:
    attributes = [each for each in part(device, "attributes").values() if isinstance(each, dict)]
    lists = (each.get(name) is not None for each in attributes for name in _LISTS)
    return bool(device.get("taints") or device.get("consumesCounters")) or any(lists)


def _device_errors(path: str, device: Json) -> Iterator[FieldError]:
    """Yield the errors in what the driver's own devices do not have: lists, sets of values."""
    count = 0
    for key in part(device, "attributes"):
        at, found = f"{path}.attributes[{key}]", part(part(device, "attributes"), key)
        present = [name for name in (*_SCALARS, *_LISTS) if found.get(name) is not None]
        if len(present) != 1:
            shown = dict(found) if present else ""
            yield invalid(at, shown, "exactly one value must be specified")
        for name in present:
            values = as_list(found[name])
            count += len(values) or 1
            if name in _LISTS and not values:
                yield invalid(f"{at}.{name}", values, "must not be empty if specified")
            for index, value in enumerate(values):
                where = f"{at}.{name}[{index}]"
                yield from device_rules.value_errors(where, _LISTS[name], value)
    if count > MOST_VALUES:
        text = f"the total number of attribute values must not exceed {MOST_VALUES}"
        yield invalid(path, count, text)
    for key in part(device, "capacity"):
        capacity = part(part(device, "capacity"), key)
        policy, at = part(capacity, "requestPolicy"), f"{path}.capacity[{key}].requestPolicy"
        options = as_list(policy.get("validValues"))
        if options and policy.get("validRange") is not None:
            yield forbidden(
                at, "exactly one policy can be specified, not validValues and validRange"
            )
        elif options and device.get("allowMultipleAllocations") is True:
            total = quantity.parse(capacity["value"])
            yield from _options_errors(at, policy.get("default"), options, total)


def _options_errors(
    path: str, default: object, options: list[object], total: Quantity
) -> Iterator[FieldError]:
    if default is None:
        yield required(f"{path}.default", "required when validValues is defined")
        return
    where = f"{path}.validValues"
    if len(options) > MOST_VALID_VALUES:
        yield too_many(where, len(options), MOST_VALID_VALUES)
        options = []
    amounts = [quantity.parse(option) for option in options]
    seen: set[int] = set()
    for index, amount in enumerate(amounts):
        here = f"{where}[{index}]"
        if index and amounts[index - 1] > amount:
            yield invalid(here, str(amount), "values must be sorted in ascending order")
        if amount > total:
            text = f"option is larger than capacity value: {total}"
            yield invalid(here, str(amount), text)
        # The API server compares whole numbers, fractions rounded up: 1.1 and 1.9 are the same.
        if amount.ceil() in seen:
            yield duplicate(here, str(amount.ceil()))
        seen.add(amount.ceil())
    wanted = quantity.parse(default)
    if wanted not in amounts:
        text = "default value is not valid according to the requestPolicy"
        yield invalid(where, str(wanted), text)
