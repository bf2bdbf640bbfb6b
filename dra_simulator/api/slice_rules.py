"""The API server's rules for a ResourceSlice (resource/validation.go, Kubernetes 1.36).

Those for names, attributes, ranges of capacity and taints are the driver's own
(core.kubernetes.device_rules). All values have their JSON type, because they were decoded before.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tensorfusion_dra.core.kubernetes import device_rules, name_rules, quantity
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    too_many,
)
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Json = Mapping[str, object]

MOST_DEVICES: Final = 128
MOST_DEVICES_ADVANCED: Final = 64
"""If any device of the slice has taints, consumed counters or an attribute that is a list."""
MOST_VALUES: Final = 48
"""Attribute values of a device; each item of a list counts."""
MOST_VALID_VALUES: Final = 10
MOST_CONDITIONS: Final = 4
MOST_COUNTER_SETS: Final = 8
MOST_COUNTER_SETS_CONSUMED: Final = 2
MOST_COUNTERS: Final = 32

_SCALARS: Final = ("int", "bool", "string", "version")
_LISTS: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_NODE_FIELDS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_NO_OPERATOR: Final = "not a valid selector operator"


def violations(spec: Json) -> tuple[str, ...]:
    """Return the API server's reasons for refusing a ResourceSlice; empty if it would accept it."""
    return tuple(str(error) for error in slice_errors(spec))


def slice_errors(spec: Json) -> Iterator[FieldError]:
    """Yield every rule violation of a ResourceSlice's spec."""
    yield from name_rules.driver("spec.driver", spec.get("driver"))
    yield from _pool_errors(as_map(spec.get("pool")))
    yield from _node_errors(spec)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    yield from _devices_errors(spec)
    yield from _counter_sets_errors("spec.sharedCounters", as_list(spec.get("sharedCounters")))


def _pool_errors(pool: Json) -> Iterator[FieldError]:
    yield from name_rules.pool("spec.pool.name", pool.get("name"))
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    assert isinstance(count, int)
    assert isinstance(generation, int)
    if count <= 0:
        yield invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        text = "must be greater than or equal to zero"
        yield invalid("spec.pool.generation", generation, text)


def _node_errors(spec: Json) -> Iterator[FieldError]:
    present = [name for name in _NODE_FIELDS if spec.get(name) is not None]
    if spec.get("nodeName") == "":
        present.remove("nodeName")
        text = "must be either unset or set to a non-empty string"
        yield invalid("spec.nodeName", "", text)
    elif "nodeName" in present:
        yield from name_rules.subdomain("spec.nodeName", spec["nodeName"])
    if "nodeSelector" in present:
        yield from node_selector_errors("spec.nodeSelector", spec["nodeSelector"])
        terms = as_map(spec["nodeSelector"]).get("nodeSelectorTerms")
        if len(as_list(terms)) != 1:
            text = "must have exactly one node selector term"
            yield invalid("spec.nodeSelector.nodeSelectorTerms", terms, text)
    for name in ("allNodes", "perDeviceNodeSelection"):
        if name in present and spec[name] is not True:
            present.remove(name)
            yield invalid(f"spec.{name}", spec[name], "must be either unset or set to true")
    expected = f"exactly one of {', '.join(f'`{name}`' for name in _NODE_FIELDS)} is required"
    if not present:
        yield required("spec", expected)
    elif len(present) > 1:
        yield invalid("spec", _quoted(present), f"{expected}, but multiple fields are set")


def _devices_errors(spec: Json) -> Iterator[FieldError]:
    devices = [as_map(device) for device in as_list(spec.get("devices"))]
    most = MOST_DEVICES_ADVANCED if any(map(_is_advanced, devices)) else MOST_DEVICES
    if len(devices) > most:
        yield too_many("spec.devices", len(devices), most)
        return
    names = [device.get("name", "") for device in devices]
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        yield from device_rules.device_errors(path, device)
        yield from _values_errors(path, as_map(device.get("attributes")))
        if device.get("allowMultipleAllocations") is True:
            for key, capacity in as_map(device.get("capacity")).items():
                yield from _policy_errors(f"{path}.capacity[{key}]", as_map(capacity))
        consumed = as_list(device.get("consumesCounters"))
        yield from _consumption_errors(f"{path}.consumesCounters", consumed)
        if spec.get("perDeviceNodeSelection") is True:
            yield from _device_node_errors(path, device)
        elif any(device.get(name) is not None for name in _NODE_FIELDS[:3]):
            yield invalid(
                path,
                None,
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if"
                " `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            )
        yield from binding_errors(path, device)
        if names[index] in names[:index]:
            yield duplicate(path, names[index])


def _is_advanced(device: Json) -> bool:
    return bool(device.get("taints") or device.get("consumesCounters")) or any(
        as_map(attribute).get(name) is not None
        for attribute in as_map(device.get("attributes")).values()
        for name in _LISTS
    )


def _values_errors(path: str, attributes: Json) -> Iterator[FieldError]:
    """Yield an error for each attribute without exactly one value, and for values in lists."""
    count = 0
    for key, attribute in attributes.items():
        at, found = f"{path}.attributes[{key}]", as_map(attribute)
        present = [name for name in (*_SCALARS, *_LISTS) if found.get(name) is not None]
        for name in present:
            if name not in _LISTS:
                continue
            values = as_list(found[name])
            if not values:
                yield invalid(f"{at}.{name}", values, "must not be empty if specified")
            for index, value in enumerate(values):
                where = f"{at}.{name}[{index}]"
                yield from device_rules.value_errors(where, _LISTS[name], value)
        if len(present) != 1:
            shown = dict(found) if present else ""
            yield invalid(at, shown, "exactly one value must be specified")
        count += sum(len(as_list(found.get(name))) for name in _LISTS) or 1
    if count > MOST_VALUES:
        text = f"the total number of attribute values must not exceed {MOST_VALUES}"
        yield invalid(path, count, text)


def _policy_errors(path: str, capacity: Json) -> Iterator[FieldError]:
    policy, at = as_map(capacity.get("requestPolicy")), f"{path}.requestPolicy"
    options = as_list(policy.get("validValues"))
    if options and policy.get("validRange") is not None:
        yield forbidden(
            at,
            'exactly one policy can be specified, cannot specify "validValues" and "validRange"'
            " at the same time",
        )
    elif options:
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


def _consumption_errors(path: str, consumed: list[object]) -> Iterator[FieldError]:
    if len(consumed) > MOST_COUNTER_SETS_CONSUMED:
        yield too_many(path, len(consumed), MOST_COUNTER_SETS_CONSUMED)
    else:
        yield from _counters_errors(path, consumed, "counterSet")


def _counter_sets_errors(path: str, counter_sets: list[object]) -> Iterator[FieldError]:
    if len(counter_sets) > MOST_COUNTER_SETS:
        yield too_many(path, len(counter_sets), MOST_COUNTER_SETS)
    else:
        yield from _counters_errors(path, counter_sets, "name")


def _counters_errors(path: str, sets: list[object], field: str) -> Iterator[FieldError]:
    """Yield the errors in a list of sets of counters; field has the name of a set."""
    names = [as_map(each).get(field) for each in sets]
    for index, (name, each) in enumerate(zip(names, sets, strict=True)):
        where = f"{path}[{index}]"
        if name in (None, ""):
            yield required(f"{where}.{field}")
        else:
            yield from name_rules.label(f"{where}.{field}", name)
        if name in names[:index]:
            yield duplicate(where, name)
        counters = as_map(as_map(each).get("counters"))
        if not counters:
            yield required(f"{where}.counters")
        if len(counters) > MOST_COUNTERS:
            yield too_many(f"{where}.counters", len(counters), MOST_COUNTERS)
            continue
        for counter in counters:
            yield from name_rules.label(f"{where}.counters", counter)


def _device_node_errors(path: str, device: Json) -> Iterator[FieldError]:
    names = [name for name in _NODE_FIELDS[:3] if device.get(name) is not None]
    if device.get("nodeName") == "":
        names.remove("nodeName")
        yield invalid(f"{path}.nodeName", "", "must not be empty")
    elif "nodeName" in names:
        yield from name_rules.subdomain(f"{path}.nodeName", device["nodeName"])
    if device.get("allNodes") is False:
        names.remove("allNodes")
        yield invalid(f"{path}.allNodes", device["allNodes"], "must be either unset or set to true")
    if "nodeSelector" in names:
        yield from node_selector_errors(f"{path}.nodeSelector", device["nodeSelector"])
    expected = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when"
        " `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    )
    if not names:
        yield required(path, expected)
    elif len(names) > 1:
        yield invalid(path, _quoted(names), expected)


def binding_errors(path: str, device: Json) -> Iterator[FieldError]:
    """Yield the errors in the binding conditions of a device or of an allocation result."""
    lists: dict[str, list[object]] = {}
    for name in ("bindingConditions", "bindingFailureConditions"):
        where, found = f"{path}.{name}", as_list(device.get(name))
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
            yield invalid(f"{path}.bindingFailureConditions[{index}]", condition, text)
    if failures and not conditions:
        text = "bindingConditions are required to use bindingFailureConditions"
        yield invalid(f"{path}.bindingConditions", conditions, text)
    if conditions and not failures:
        text = "bindingFailureConditions are required to use bindingConditions"
        yield invalid(f"{path}.bindingFailureConditions", failures, text)


def _quoted(names: list[str]) -> str:
    """Return field names in the API server's notation: {`nodeName`, `allNodes`}."""
    return "{" + ", ".join(f"`{name}`" for name in names) + "}"


def node_selector_errors(path: str, selector: object) -> Iterator[FieldError]:
    """Yield every rule violation of a node selector."""
    where = f"{path}.nodeSelectorTerms"
    terms = as_map(selector).get("nodeSelectorTerms")
    if not terms:
        yield required(where, "must have at least one node selector term")
    for index, term in enumerate(as_list(terms)):
        yield from _term_errors(f"{where}[{index}]", as_map(term))


def _term_errors(path: str, term: Json) -> Iterator[FieldError]:
    for index, requirement in enumerate(as_list(term.get("matchExpressions"))):
        yield from _expression_errors(f"{path}.matchExpressions[{index}]", as_map(requirement))
    for index, requirement in enumerate(as_list(term.get("matchFields"))):
        yield from _field_errors(f"{path}.matchFields[{index}]", as_map(requirement))


def _expression_errors(path: str, requirement: Json) -> Iterator[FieldError]:
    operator, values = requirement.get("operator"), as_list(requirement.get("values"))
    where = f"{path}.values"
    match operator:
        case "In" | "NotIn" if not values:
            yield required(where, "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist" if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden(where, text)
        case "Gt" | "Lt" if len(values) != 1:
            text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            yield required(where, text)
        case _ if operator not in _OPERATORS:
            yield invalid(f"{path}.operator", operator, _NO_OPERATOR)
    yield from name_rules.label_key(f"{path}.key", requirement.get("key", ""))
    if operator in ("In", "NotIn"):
        for index, value in enumerate(values):
            yield from name_rules.label_value(f"{where}[{index}]", value)


def _field_errors(path: str, requirement: Json) -> Iterator[FieldError]:
    key, values = requirement.get("key"), as_list(requirement.get("values"))
    if requirement.get("operator") not in ("In", "NotIn"):
        yield invalid(f"{path}.operator", requirement.get("operator"), _NO_OPERATOR)
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", text)
    if key != "metadata.name":
        yield invalid(f"{path}.key", key, "not a valid field selector key")
    for index, value in enumerate(values):
        yield from name_rules.subdomain(f"{path}.values[{index}]", value)
