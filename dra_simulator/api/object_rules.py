"""The API server's rules for slices, claims and classes (resource/validation.go, Kubernetes 1.37
and 1.38).

Those for single fields are in rules. Those for values of attributes and ranges of capacity are the
driver's own (core.kubernetes.device_rules).
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from typing import Final

from dra_simulator.api import rules
from dra_simulator.api.formats import duplicate, forbidden, not_supported, too_many
from dra_simulator.api.rules import SCHEMA
from dra_simulator.api.schema import Json, elements, part
from tensorfusion_dra.core.kubernetes import device_rules, name_rules, quantity, releases
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    invalid,
    required,
    too_long,
)
from tensorfusion_dra.core.kubernetes.quantity import MILLI, NANO, Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

MAX_DEVICES: Final = 128
MAX_DEVICES_ADVANCED: Final = 64
"""If any device of the slice has taints, consumed counters or an attribute that is a list."""
MAX_VALUES: Final = 48
"""Attribute values of a device; each item of a list counts."""
MAX_VALID_VALUES: Final = 10
MAX_TAINTS: Final = 16
"""Of a device."""
MAX_AMOUNTS: Final = 32
"""Of a request, and of an allocated device (from Kubernetes 1.38 on)."""
_TAINT_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")

_SCALARS: Final = ("int", "bool", "string", "version")
_LISTS: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_NODE_FIELDS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def violations(spec: Mapping[str, object], release: int = releases.SIMULATED) -> tuple[str, ...]:
    """Return the API server's reasons for refusing a ResourceSlice; empty if it would accept it."""
    return tuple(str(error) for error in slice_errors(dict(spec), release))


def slice_errors(spec: Json, release: int) -> Iterator[FieldError]:
    """Yield every rule violation of a ResourceSlice's spec in a minor version of Kubernetes."""
    devices = list(elements(spec.get("devices")))
    most = MAX_DEVICES_ADVANCED if any(map(_is_advanced, devices)) else MAX_DEVICES
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
            case "ResourcePool":
                yield from _pool_errors(at, found)
            case "Device":
                yield from device_errors(at, found, release)
                if spec.get("perDeviceNodeSelection") is True:
                    yield from _node_errors(at, found, _NODE_FIELDS[:3])
                elif any(found.get(name) is not None for name in _NODE_FIELDS):
                    yield invalid(
                        at,
                        None,
                        "`nodeName`, `nodeSelector` and `allNodes` can only be set if"
                        " `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
                    )
        terms = as_list(part(found, "nodeSelector").get("nodeSelectorTerms"))
        if len(terms) > 1 and (struct != "Device" or release >= releases.STRICT_API):
            text = "must have exactly one node selector term"
            yield invalid(f"{at}.nodeSelector.nodeSelectorTerms", terms, text)


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


def device_errors(
    path: str, device: Json, release: int = releases.SIMULATED
) -> Iterator[FieldError]:
    """Yield every rule violation of a device.

    Args:
        path: Prefix of every error's path, joined with a dot; "" for none.
    """
    at = f"{path}." if path else ""
    yield from name_rules.label(f"{at}name", device.get("name"))
    attributes, capacities = part(device, "attributes"), part(device, "capacity")
    entries = len(attributes) + len(capacities)
    if entries > device_rules.MAX_ENTRIES:
        most = device_rules.MAX_ENTRIES
        text = f"the total number of attributes and capacities must not exceed {most}"
        yield invalid(path, entries, text)
    for key in attributes:
        yield from name_rules.qualified(f"{at}attributes", key)
        where, attribute = f"{at}attributes[{key}]", part(attributes, key)
        yield from device_rules.attribute_errors(where, attribute, release)
    for key in capacities:
        yield from name_rules.qualified(f"{at}capacity", key)
        where, capacity = f"{at}capacity[{key}]", part(capacities, key)
        is_shared = device.get("allowMultipleAllocations") is True
        if capacity.get("requestPolicy") is not None and not is_shared:
            yield forbidden(f"{where}.requestPolicy", "allowMultipleAllocations must be true")
        else:
            unit = MILLI if release >= releases.MILLI else NANO
            yield from device_rules.capacity_errors(where, capacity, (unit,))
    yield from _taint_errors(at, as_list(device.get("taints")))
    yield from _lists_errors(path, device, release)


def _taint_errors(at: str, taints: list[object]) -> Iterator[FieldError]:
    if len(taints) > MAX_TAINTS:
        yield too_many(f"{at}taints", len(taints), MAX_TAINTS)
        return
    for index, taint in enumerate(map(as_map, taints)):
        yield from taint_errors(f"{at}taints[{index}]", taint)


def taint_errors(where: str, taint: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield the errors in one taint of a device."""
    yield from name_rules.label_key(f"{where}.key", taint.get("key", ""))
    if taint.get("value"):
        yield from name_rules.label_value(f"{where}.value", taint["value"])
    effect = taint.get("effect")
    if effect in (None, ""):
        yield required(f"{where}.effect")
    elif effect not in _TAINT_EFFECTS:
        yield not_supported(f"{where}.effect", effect, _TAINT_EFFECTS)


def _lists_errors(path: str, device: Json, release: int) -> Iterator[FieldError]:
    """Yield the errors in lists of values, and in sets of valid ones."""
    at = f"{path}." if path else ""
    count = 0
    for key in part(device, "attributes"):
        here, found = f"{at}attributes[{key}]", part(part(device, "attributes"), key)
        present = [name for name in (*_SCALARS, *_LISTS) if found.get(name) is not None]
        if len(present) != 1:
            shown = dict(found) if present else ""
            yield invalid(here, shown, "exactly one value must be specified")
        for name in present:
            values = as_list(found[name])
            count += len(values) or 1
            if name in _LISTS and not values:
                yield invalid(f"{here}.{name}", values, "must not be empty if specified")
            for index, value in enumerate(values):
                where = f"{here}.{name}[{index}]"
                yield from device_rules.value_errors(where, _LISTS[name], value, release)
    if count > MAX_VALUES:
        text = f"the total number of attribute values must not exceed {MAX_VALUES}"
        yield invalid(path, count, text)
    for key in part(device, "capacity"):
        capacity = part(part(device, "capacity"), key)
        policy, where = part(capacity, "requestPolicy"), f"{at}capacity[{key}].requestPolicy"
        options = as_list(policy.get("validValues"))
        if options and policy.get("validRange") is not None:
            yield forbidden(
                where, "exactly one policy can be specified, not validValues and validRange"
            )
        elif options and device.get("allowMultipleAllocations") is True:
            total = quantity.parse(capacity.get("value") or "0")
            yield from _options_errors(where, policy.get("default"), options, total)


def _options_errors(
    path: str, default: object, options: list[object], total: Quantity
) -> Iterator[FieldError]:
    if default is None:
        yield required(f"{path}.default", "required when validValues is defined")
        return
    where = f"{path}.validValues"
    if len(options) > MAX_VALID_VALUES:
        yield too_many(where, len(options), MAX_VALID_VALUES)
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
        if amount.nano in seen:
            yield duplicate(here, f"{Decimal(amount.nano).scaleb(-9).normalize():f}")
        seen.add(amount.nano)
    wanted = quantity.parse(default)
    if wanted not in amounts:
        text = "default value is not valid according to the requestPolicy"
        yield invalid(where, str(wanted), text)


DeviceKey = tuple[str, str, str, str]
CheckExpression = Callable[[str], str | None]

MAX_PARAMETERS_BYTES: Final = 10 * 1024

_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest"
    " separated by '/'"
)
_KEY_NAMES: Final = ("driver", "pool", "device", "shareID")
_REASON: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def any_expression(_: str) -> str | None:
    """Accept any CEL expression."""
    return None


def class_errors(spec: Json, check: CheckExpression) -> Iterator[FieldError]:
    """Yield the errors in the spec of a device class."""
    return _errors("DeviceClassSpec", spec, "spec", (), check)


def spec_errors(
    path: str, spec: Json, check: CheckExpression, release: int
) -> Iterator[FieldError]:
    """Yield the errors in the spec of a claim or a template in a minor version of Kubernetes."""
    return _errors("ResourceClaimSpec", spec, path, _request_names(spec), check, release=release)


def status_errors(
    claim: Json, old: Json, release: int = releases.SIMULATED
) -> Iterator[FieldError]:
    """Yield the errors in a claim's status; old is the claim before the change."""
    status, old_status = part(claim, "status"), part(old, "status")
    names = _request_names(part(claim, "spec"))
    yield from _errors(
        "ResourceClaimStatus", status, "status", names, any_expression, release=release
    )
    allocated = allocated_devices(status)
    for index, device in enumerate(elements(status.get("devices"))):
        if device_key(device) not in allocated:
            shown = {name: device.get(name) for name in _KEY_NAMES}
            text = "must be an allocated device in the claim"
            yield invalid(f"status.devices[{index}]", shown, text)
    allocation, old_allocation = status.get("allocation"), old_status.get("allocation")
    if None not in (allocation, old_allocation) and allocation != old_allocation:
        yield invalid("status.allocation", allocation, "field is immutable")
    consumers, old_consumers = (as_list(s.get("reservedFor")) for s in (status, old_status))
    if consumers and allocation is None:
        yield forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    elif "deletionTimestamp" in part(old, "metadata") and any(
        consumer not in old_consumers for consumer in consumers
    ):
        yield forbidden(
            "status.reservedFor",
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp`"
            " are set",
        )


def device_key(device: Mapping[str, object]) -> DeviceKey:
    """Return the key of an allocated device: driver, pool, device and share."""
    driver, pool, name, share = (str(device.get(name) or "") for name in _KEY_NAMES)
    return driver, pool, name, share


def allocated_devices(status: Json) -> set[DeviceKey]:
    """Return the keys of the devices that are allocated to a claim."""
    return {device_key(result) for result in results(status)}


def results(status: Json) -> list[Json]:
    """Return the allocation results in a claim's status."""
    return list(elements(part(part(status, "allocation"), "devices").get("results")))


def _errors(  # noqa: PLR0912 - one case for each struct
    struct: str,
    document: Json,
    path: str,
    names: Collection[str],
    check: CheckExpression,
    *,
    release: int = releases.SIMULATED,
) -> Iterator[FieldError]:
    """Yield the errors in an object and in all objects within it.

    Args:
        names: Names by which the object may refer to requests.
        check: Returns the error in a CEL expression; None if there is none.
    """
    for inner, at, found in SCHEMA.walk(struct, document, path):
        yield from rules.errors(inner, found, at)
        match inner:
            case "DeviceRequest":
                yield from _request_errors(at, found)
            case "ExactDeviceRequest" | "DeviceSubRequest":
                yield from _count_errors(at, found)
            case "CELDeviceSelector":
                expression = str(found.get("expression", ""))
                complaint = check(expression)
                if complaint is not None:
                    yield invalid(f"{at}.expression", expression, complaint)
            case "DeviceToleration":
                if found.get("operator") == "Exists" and found.get("value"):
                    text = "must be empty for operator `Exists`"
                    yield invalid(f"{at}.value", found["value"], text)
                yield from name_rules.label_value(f"{at}.value", found.get("value", ""))
            case "DeviceConstraint":
                if found.get("matchAttribute") is found.get("distinctAttribute") is None:
                    text = 'exactly one of "matchAttribute" or "distinctAttribute" is required'
                    yield required(at, text)
            case "OpaqueDeviceConfiguration":
                yield from _raw_errors(f"{at}.parameters", found.get("parameters"))
            case "DeviceRequestAllocationResult":
                yield from _reference_errors(f"{at}.request", found.get("request"), names)
            case "AllocatedDeviceStatus":
                yield from _raw_errors(f"{at}.data", found.get("data"))
            case "Condition":
                yield from _condition_errors(at, found)
        for amounts in ("requests", "consumedCapacity") if release >= releases.STRICT_API else ():
            yield from _amount_errors(f"{at}.{amounts}", part(found, amounts))
        for index, name in enumerate(as_list(found.get("requests"))):
            if isinstance(name, str):
                yield from _reference_errors(f"{at}.requests[{index}]", name, names)


def _request_names(spec: Json) -> frozenset[str]:
    """Return every name that can refer to a claim's requests: ``main`` and ``main/sub``."""
    names: set[str] = set()
    for request in elements(part(spec, "devices").get("requests")):
        main = str(request.get("name", ""))
        subs = elements(request.get("firstAvailable"))
        names |= {main, *(f"{main}/{sub.get('name', '')}" for sub in subs)}
    return frozenset(names)


def _request_errors(path: str, request: Json) -> Iterator[FieldError]:
    expected = "exactly one of `exactly` or `firstAvailable` is required"
    if request.get("exactly") is None and not request.get("firstAvailable"):
        yield required(path, expected)
    elif request.get("exactly") is not None and request.get("firstAvailable"):
        yield invalid(path, None, f"{expected}, but multiple fields are set")


def _count_errors(path: str, wanted: Json) -> Iterator[FieldError]:
    mode, count = wanted.get("allocationMode"), wanted.get("count", 0)
    assert isinstance(count, int)
    if mode == "All" and count != 0:
        text = "must not be specified when allocationMode is 'All'"
        yield invalid(f"{path}.count", count, text)
    elif mode == "ExactCount" and count <= 0:
        yield invalid(f"{path}.count", count, "must be greater than zero")
    elif mode not in {"All", "ExactCount"}:
        yield not_supported(f"{path}.allocationMode", mode, ["All", "ExactCount"])


def _amount_errors(path: str, amounts: Json) -> Iterator[FieldError]:
    if len(amounts) > MAX_AMOUNTS:
        yield too_many(path, len(amounts), MAX_AMOUNTS)
    for name, amount in amounts.items():
        yield from name_rules.qualified(path, name)
        if quantity.parse(amount).nano < 0:
            yield invalid(f"{path}[{name}]", amount, "must be greater than or equal to 0")


def _reference_errors(path: str, name: object, names: Collection[str]) -> Iterator[FieldError]:
    if name not in names:
        yield invalid(path, name, _REFERENCE)


def _raw_errors(path: str, raw: object) -> Iterator[FieldError]:
    """Yield the errors in parameters or data, which must be a JSON object of at most 10 KiB.

    The API server counts the bytes of the request. Here they are the bytes of JSON with spaces, so
    that an object that passes here passes there as well.
    """
    if raw is not None and len(json.dumps(raw)) > MAX_PARAMETERS_BYTES:
        yield too_long(path, MAX_PARAMETERS_BYTES)
    elif not isinstance(raw, dict | None):
        yield invalid(path, "<value omitted>", "must be a valid JSON object")


def _condition_errors(path: str, condition: Json) -> Iterator[FieldError]:
    generation, reason = condition.get("observedGeneration", 0), str(condition.get("reason", ""))
    assert isinstance(generation, int)
    if generation < 0:
        text = "must be greater than or equal to zero"
        yield invalid(f"{path}.observedGeneration", generation, text)
    if reason and not _REASON.fullmatch(reason):
        yield invalid(f"{path}.reason", reason, f"must be {_REASON.pattern}")
