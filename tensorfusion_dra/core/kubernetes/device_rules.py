"""The API server's rules for one device of a ResourceSlice (validation.go, Kubernetes 1.36)."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tensorfusion_dra.core.kubernetes import name_rules, node_selector_rules, policy_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
    wrong_type,
)
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

MOST_ENTRIES: Final = 32
"""Attributes and capacities together."""
MOST_VALUES: Final = 48
"""Attribute values; each item of a list counts."""
MOST_TEXT_BYTES: Final = 64
MOST_TAINTS: Final = 16
MOST_CONDITIONS: Final = 4
MOST_COUNTER_SETS_CONSUMED: Final = 2
MOST_COUNTERS: Final = 32

TAINT_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")

_INT64: Final = range(-(2**63), 2**63)
_SCALARS: Final = ("int", "bool", "string", "version")
_LISTS: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_PRERELEASE: Final = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD: Final = r"[0-9A-Za-z-]+"
_SEMVER: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?(?:\+{_BUILD}(?:\.{_BUILD})*)?"
)


def device_errors(
    path: str, device: Mapping[str, object], *, per_device_nodes: bool = False
) -> Iterator[FieldError]:
    """Yield every rule violation of a device.

    Args:
        path: Prefix of every error's path, joined with a dot; "" for none.
        per_device_nodes: True if the slice sets perDeviceNodeSelection.
    """
    at = f"{path}." if path else ""
    yield from name_rules.label(f"{at}name", device.get("name"))
    attributes = as_map(device.get("attributes"))
    capacities = as_map(device.get("capacity"))
    yield from shape_errors(at, device)
    entries = len(attributes) + len(capacities)
    if entries > MOST_ENTRIES:
        text = f"the total number of attributes and capacities must not exceed {MOST_ENTRIES}"
        yield invalid(path, entries, text)
    values = sum(_value_count(as_map(attribute)) for attribute in attributes.values())
    if values > MOST_VALUES:
        yield invalid(
            path, values, f"the total number of attribute values must not exceed {MOST_VALUES}"
        )
    for key, attribute in attributes.items():
        yield from name_rules.qualified(f"{at}attributes", key)
        yield from attribute_errors(f"{at}attributes[{key}]", attribute)
    shared = device.get("allowMultipleAllocations") is True
    for key, capacity in capacities.items():
        yield from name_rules.qualified(f"{at}capacity", key)
        yield from policy_rules.capacity_errors(f"{at}capacity[{key}]", capacity, shared=shared)
    yield from _taints_errors(f"{at}taints", as_list(device.get("taints")))
    yield from _consumption_errors(f"{at}consumesCounters", as_list(device.get("consumesCounters")))
    yield from _node_errors(path, device, per_device_nodes=per_device_nodes)
    yield from binding_errors(path, device)


def shape_errors(at: str, device: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield an error for each map, list or boolean field of the wrong JSON type."""
    for name in ("attributes", "capacity"):
        if not isinstance(device.get(name, {}), Mapping | None):
            yield wrong_type(f"{at}{name}", device[name], "an object")
    for name in ("taints", "consumesCounters", "bindingConditions", "bindingFailureConditions"):
        if not isinstance(device.get(name, []), list | None):
            yield wrong_type(f"{at}{name}", device[name], "a list")
    for name in ("allowMultipleAllocations", "bindsToNode", "allNodes"):
        if not isinstance(device.get(name, False), bool | None):
            yield wrong_type(f"{at}{name}", device[name], "a boolean")


def attribute_errors(path: str, attribute: object) -> Iterator[FieldError]:
    """Yield the errors of an attribute: it needs exactly one value, of its type, not too long."""
    if not isinstance(attribute, Mapping):
        yield wrong_type(path, attribute, "an object with one of int, bool, string, version")
        return
    present = [name for name in (*_SCALARS, *_LISTS) if attribute.get(name) is not None]
    for name in present:
        where, value = f"{path}.{name}", attribute[name]
        if name in _SCALARS:
            yield from _scalar_errors(where, name, value)
        elif not isinstance(value, list):
            yield wrong_type(where, value, "a list")
        else:
            if not value:
                yield invalid(where, value, "must not be empty if specified")
            for index, item in enumerate(value):
                yield from _scalar_errors(f"{where}[{index}]", _LISTS[name], item)
    if len(present) != 1:
        found = dict(attribute) if present else ""
        yield invalid(path, found, "exactly one value must be specified")


def _scalar_errors(path: str, kind: str, value: object) -> Iterator[FieldError]:
    match kind, value:
        case "bool", bool():
            pass
        case "int", int() if not isinstance(value, bool):
            if value not in _INT64:
                yield invalid(path, value, "must be a 64-bit integer")
        case "string" | "version", str():
            if kind == "version" and not _SEMVER.fullmatch(value):
                yield invalid(path, value, "must be a string compatible with semver.org spec 2.0.0")
            if name_rules.size(value) > MOST_TEXT_BYTES:
                yield too_long(path, MOST_TEXT_BYTES)
        case _:
            names = {"int": "an integer", "bool": "a boolean"}
            yield wrong_type(path, value, names.get(kind, "a string"))


def _value_count(attribute: Mapping[str, object]) -> int:
    items = sum(len(as_list(attribute.get(name))) for name in _LISTS)
    return items or 1


def _taints_errors(path: str, taints: list[object]) -> Iterator[FieldError]:
    if len(taints) > MOST_TAINTS:
        yield too_many(path, len(taints), MOST_TAINTS)
        return
    for index, taint in enumerate(taints):
        where = f"{path}[{index}]"
        if not isinstance(taint, Mapping):
            yield wrong_type(where, taint, "an object")
            continue
        yield from name_rules.label_key(f"{where}.key", taint.get("key", ""))
        if taint.get("value"):
            yield from name_rules.label_value(f"{where}.value", taint["value"])
        effect = taint.get("effect")
        if effect in (None, ""):
            yield required(f"{where}.effect")
        elif effect not in TAINT_EFFECTS:
            yield not_supported(f"{where}.effect", effect, TAINT_EFFECTS)


def _consumption_errors(path: str, consumed: list[object]) -> Iterator[FieldError]:
    if len(consumed) > MOST_COUNTER_SETS_CONSUMED:
        yield too_many(path, len(consumed), MOST_COUNTER_SETS_CONSUMED)
        return
    seen: set[object] = set()
    for index, entry in enumerate(consumed):
        where = f"{path}[{index}]"
        if not isinstance(entry, Mapping):
            yield wrong_type(where, entry, "an object")
            continue
        name = entry.get("counterSet")
        if name in (None, ""):
            yield required(f"{where}.counterSet")
        else:
            yield from name_rules.label(f"{where}.counterSet", name)
        if isinstance(name, str) and name in seen:
            yield duplicate(where, name)
        seen.add(name if isinstance(name, str) else None)
        yield from counters_errors(f"{where}.counters", entry.get("counters"))


def counters_errors(path: str, counters: object) -> Iterator[FieldError]:
    """Yield the errors in the counters of a counter set or of a `consumesCounters` entry."""
    found = as_map(counters)
    if counters is not None and not isinstance(counters, Mapping):
        yield wrong_type(path, counters, "an object")
        return
    if not found:
        yield required(path)
    if len(found) > MOST_COUNTERS:
        yield too_many(path, len(found), MOST_COUNTERS)
        return
    for name, counter in found.items():
        yield from name_rules.label(path, name)
        try:
            quantity.parse(as_map(counter).get("value", "0"))
        except quantity.QuantityError as error:
            yield invalid(f"{path}[{name}].value", as_map(counter).get("value"), str(error))


def _node_errors(
    path: str, device: Mapping[str, object], *, per_device_nodes: bool
) -> Iterator[FieldError]:
    at = f"{path}." if path else ""
    names = [n for n in ("nodeName", "nodeSelector", "allNodes") if device.get(n) is not None]
    if not per_device_nodes:
        if names:
            yield invalid(
                path,
                None,
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if"
                " `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            )
        return
    if device.get("nodeName") == "":
        names.remove("nodeName")
        yield invalid(f"{at}nodeName", "", "must not be empty")
    elif "nodeName" in names:
        yield from name_rules.subdomain(f"{at}nodeName", device["nodeName"])
    if device.get("allNodes") is False:
        names.remove("allNodes")
        yield invalid(f"{at}allNodes", device["allNodes"], "must be either unset or set to true")
    if "nodeSelector" in names:
        yield from node_selector_rules.errors(f"{at}nodeSelector", device["nodeSelector"])
    expected = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when"
        " `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    )
    if not names:
        yield required(path, expected)
    elif len(names) > 1:
        yield invalid(path, quoted(names), expected)


def binding_errors(path: str, device: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield the errors in the binding conditions of a device or of an allocation result."""
    at = f"{path}." if path else ""
    lists: dict[str, list[object]] = {}
    for name in ("bindingConditions", "bindingFailureConditions"):
        where, found = f"{at}{name}", as_list(device.get(name))
        lists[name] = found
        if len(found) > MOST_CONDITIONS:
            yield too_many(where, len(found), MOST_CONDITIONS)
        for index, condition in enumerate(found):
            if len(found) <= MOST_CONDITIONS:
                yield from name_rules.label_key(f"{where}[{index}]", condition)
            if condition in found[:index]:
                yield duplicate(f"{where}[{index}]", condition)
    conditions, failures = lists["bindingConditions"], lists["bindingFailureConditions"]
    for index, condition in enumerate(failures):
        if condition in conditions:
            text = "bindingFailureConditions must not overlap with bindingConditions"
            yield invalid(f"{at}bindingFailureConditions[{index}]", condition, text)
    if failures and not conditions:
        text = "bindingConditions are required to use bindingFailureConditions"
        yield invalid(f"{at}bindingConditions", conditions, text)
    if conditions and not failures:
        text = "bindingFailureConditions are required to use bindingConditions"
        yield invalid(f"{at}bindingFailureConditions", failures, text)


def quoted(names: list[str]) -> str:
    """Return field names in the API server's notation: {`nodeName`, `allNodes`}."""
    return "{" + ", ".join(f"`{name}`" for name in names) + "}"
