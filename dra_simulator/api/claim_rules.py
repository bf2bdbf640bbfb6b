"""The API server's rules for claims, templates and device classes (resource/validation.go)."""

import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from dra_simulator.api import slice_rules
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.device_rules import TAINT_EFFECTS
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Json = Mapping[str, object]
DeviceKey = tuple[str, str, str, str]
CheckExpression = Callable[[str], str | None]

MOST_REQUESTS: Final = 32
MOST_CONSTRAINTS: Final = 32
MOST_CONFIGS: Final = 32
MOST_SELECTORS: Final = 32
MOST_SUBREQUESTS: Final = 8
MOST_EXPRESSION_BYTES: Final = 10 * 1024
MOST_PARAMETERS_BYTES: Final = 10 * 1024
MOST_RESULTS: Final = 32
MOST_ALLOCATED_CONFIGS: Final = 64
MOST_RESERVED: Final = 256
MOST_CONDITIONS: Final = 8
MOST_ADDRESSES: Final = 16
MOST_INTERFACE_BYTES: Final = 256
MOST_HARDWARE_ADDRESS_BYTES: Final = 128
MOST_REASON_BYTES: Final = 1024
MOST_MESSAGE_BYTES: Final = 32 * 1024

_REASON: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_KEY_NAMES: Final = ("Driver", "Pool", "Device", "ShareID")
_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest"
    " separated by '/'"
)


def any_expression(_: str) -> str | None:
    """Accept any CEL expression."""
    return None


def spec_errors(path: str, spec: Json, check: CheckExpression) -> Iterator[FieldError]:
    """Yield the errors in the spec of a claim or a template."""
    devices = as_map(spec.get("devices"))
    at = f"{path}.devices"
    requests = as_list(devices.get("requests"))
    if len(requests) > MOST_REQUESTS:
        yield too_many(f"{at}.requests", len(requests), MOST_REQUESTS)
        requests = []
    for index, request in enumerate(requests):
        yield from _request_errors(f"{at}.requests[{index}]", as_map(request), check)
    yield from _duplicates(f"{at}.requests", [as_map(r).get("name", "") for r in requests])
    names = _request_names(spec)
    constraints = as_list(devices.get("constraints"))
    if len(constraints) > MOST_CONSTRAINTS:
        yield too_many(f"{at}.constraints", len(constraints), MOST_CONSTRAINTS)
        constraints = []
    for index, constraint in enumerate(constraints):
        yield from _constraint_errors(f"{at}.constraints[{index}]", as_map(constraint), names)
    configs = as_list(devices.get("config"))
    if len(configs) > MOST_CONFIGS:
        yield too_many(f"{at}.config", len(configs), MOST_CONFIGS)
        configs = []
    for index, config in enumerate(configs):
        where = f"{at}.config[{index}]"
        yield from _references_errors(f"{where}.requests", as_map(config).get("requests"), names)
        yield from config_errors(where, as_map(config))


def _request_names(spec: Json) -> frozenset[str]:
    """Return every name that can refer to a claim's requests: ``main`` and ``main/sub``."""
    names: set[str] = set()
    for request in as_list(as_map(spec.get("devices")).get("requests")):
        main = str(as_map(request).get("name", ""))
        names.add(main)
        for sub in as_list(as_map(request).get("firstAvailable")):
            names.add(f"{main}/{as_map(sub).get('name', '')}")
    return frozenset(names)


def _request_errors(path: str, request: Json, check: CheckExpression) -> Iterator[FieldError]:
    yield from name_rules.label(f"{path}.name", request.get("name"))
    exactly, subrequests = request.get("exactly"), as_list(request.get("firstAvailable"))
    expected = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is None and not subrequests:
        yield required(path, expected)
    elif exactly is not None and subrequests:
        yield invalid(path, None, f"{expected}, but multiple fields are set")
    elif exactly is not None:
        yield from _devices_errors(f"{path}.exactly", as_map(exactly), check)
    elif len(subrequests) > MOST_SUBREQUESTS:
        yield too_many(f"{path}.firstAvailable", len(subrequests), MOST_SUBREQUESTS)
    else:
        for index, sub in enumerate(subrequests):
            where = f"{path}.firstAvailable[{index}]"
            yield from name_rules.label(f"{where}.name", as_map(sub).get("name"))
            yield from _devices_errors(where, as_map(sub), check)
        names = [as_map(sub).get("name", "") for sub in subrequests]
        yield from _duplicates(f"{path}.firstAvailable", names)


def _devices_errors(path: str, wanted: Json, check: CheckExpression) -> Iterator[FieldError]:
    device_class = wanted.get("deviceClassName")
    if device_class in (None, ""):
        yield required(f"{path}.deviceClassName")
    else:
        yield from name_rules.subdomain(f"{path}.deviceClassName", device_class)
    yield from selectors_errors(f"{path}.selectors", wanted.get("selectors"), check)
    mode, count = wanted.get("allocationMode"), wanted.get("count", 0)
    assert isinstance(count, int)
    if mode == "All":
        if count != 0:
            text = "must not be specified when allocationMode is 'All'"
            yield invalid(f"{path}.count", count, text)
    elif mode == "ExactCount":
        if count <= 0:
            yield invalid(f"{path}.count", count, "must be greater than zero")
    else:
        yield not_supported(f"{path}.allocationMode", mode, ["All", "ExactCount"])
    for index, toleration in enumerate(as_list(wanted.get("tolerations"))):
        yield from _toleration_errors(f"{path}.tolerations[{index}]", as_map(toleration))


def selectors_errors(path: str, selectors: object, check: CheckExpression) -> Iterator[FieldError]:
    """Yield the errors in the CEL selectors of a request or a device class."""
    found = as_list(selectors)
    if len(found) > MOST_SELECTORS:
        yield too_many(path, len(found), MOST_SELECTORS)
        return
    for index, selector in enumerate(found):
        where = f"{path}[{index}].cel"
        cel = as_map(selector).get("cel")
        if cel is None:
            yield required(where)
            continue
        expression = str(as_map(cel).get("expression", ""))
        if len(expression.encode()) > MOST_EXPRESSION_BYTES:
            yield too_long(f"{where}.expression", MOST_EXPRESSION_BYTES)
            continue
        complaint = check(expression)
        if complaint is not None:
            yield invalid(f"{where}.expression", expression, complaint)


def _toleration_errors(path: str, toleration: Json) -> Iterator[FieldError]:
    key, value = toleration.get("key", ""), toleration.get("value", "")
    operator, effect = toleration.get("operator", ""), toleration.get("effect", "")
    if key:
        yield from name_rules.label_key(f"{path}.key", key)
    match operator:
        case "Exists":
            if value:
                yield invalid(f"{path}.value", value, "must be empty for operator `Exists`")
        case "Equal":
            yield from name_rules.label_value(f"{path}.value", value)
        case "":
            yield required(f"{path}.operator")
        case _:
            yield not_supported(f"{path}.operator", operator, ["Equal", "Exists"])
    if effect and effect not in TAINT_EFFECTS:
        yield not_supported(f"{path}.effect", effect, TAINT_EFFECTS)


def _constraint_errors(path: str, constraint: Json, names: Collection[str]) -> Iterator[FieldError]:
    yield from _references_errors(f"{path}.requests", constraint.get("requests"), names)
    for field in ("matchAttribute", "distinctAttribute"):
        if constraint.get(field) is not None:
            yield from name_rules.fully_qualified(f"{path}.{field}", constraint[field])
            return
    text = 'exactly one of "matchAttribute" or "distinctAttribute" is required'
    yield required(path, text)


def _references_errors(
    path: str, references: object, names: Collection[str]
) -> Iterator[FieldError]:
    """Yield the errors in a list of request names."""
    found = as_list(references)
    if len(found) > MOST_REQUESTS:
        yield too_many(path, len(found), MOST_REQUESTS)
        return
    for index, name in enumerate(found):
        yield from _reference_errors(f"{path}[{index}]", str(name), names)
    yield from _duplicates(path, found)


def _reference_errors(path: str, name: str, names: Collection[str]) -> Iterator[FieldError]:
    """Yield the errors in the name of a request, or of a request and its subrequest."""
    parts = name.split("/")
    if len(parts) <= 2:
        for part in parts:
            yield from name_rules.label(path, part)
    if name not in names:
        yield invalid(path, name, _REFERENCE)


def config_errors(path: str, config: Json) -> Iterator[FieldError]:
    """Yield the errors in the opaque configuration of a claim, a class or an allocation."""
    opaque = config.get("opaque")
    if opaque is None:
        yield required(f"{path}.opaque")
        return
    yield from name_rules.driver(f"{path}.opaque.driver", as_map(opaque).get("driver"))
    yield from _raw_errors(f"{path}.opaque.parameters", as_map(opaque).get("parameters"))


def _raw_errors(path: str, raw: object) -> Iterator[FieldError]:
    """Yield the errors in parameters or data, which must be a JSON object of at most 10 KiB.

    The API server counts the bytes of the request. Here they are the bytes of JSON with spaces, so
    that an object that passes here passes there as well.
    """
    if raw is None:
        yield required(path)
    elif len(json.dumps(raw)) > MOST_PARAMETERS_BYTES:
        yield too_long(path, MOST_PARAMETERS_BYTES)
    elif not isinstance(raw, dict):
        yield invalid(path, "<value omitted>", "must be a valid JSON object")


def _duplicates(path: str, names: list[object]) -> Iterator[FieldError]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield duplicate(f"{path}[{index}]", name)


def device_key(device: Json) -> DeviceKey:
    """Return the key of an allocated device: driver, pool, device and share."""
    return (
        str(device.get("driver", "")),
        str(device.get("pool", "")),
        str(device.get("device", "")),
        str(device.get("shareID") or ""),
    )


def allocated_devices(status: Json) -> set[DeviceKey]:
    """Return the keys of the devices that are allocated to a claim."""
    return {device_key(as_map(result)) for result in results(status)}


def results(status: Json) -> list[object]:
    """Return the allocation results in a claim's status."""
    devices = as_map(status.get("allocation")).get("devices")
    return as_list(as_map(devices).get("results"))


def status_errors(claim: Json, old: Json) -> Iterator[FieldError]:
    """Yield the errors in a claim's status; old is the claim before the change."""
    status, old_status = as_map(claim.get("status")), as_map(old.get("status"))
    deleted = "deletionTimestamp" in as_map(old.get("metadata"))
    yield from _reserved_errors(status, old_status, deleted=deleted)
    allocated = allocated_devices(status)
    devices = as_list(status.get("devices"))
    for index, device in enumerate(devices):
        yield from _device_errors(f"status.devices[{index}]", as_map(device), allocated)
    keys = [device_key(as_map(device)) for device in devices]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            yield duplicate(f"status.devices[{index}]", dict(zip(_KEY_NAMES, key, strict=True)))
    allocation, old_allocation = status.get("allocation"), old_status.get("allocation")
    if allocation is not None and old_allocation is not None:
        if allocation != old_allocation:
            yield invalid("status.allocation", allocation, "field is immutable")
    elif allocation is not None:
        names = _request_names(as_map(claim.get("spec")))
        yield from _allocation_errors("status.allocation", as_map(allocation), names)


def _reserved_errors(status: Json, old_status: Json, *, deleted: bool) -> Iterator[FieldError]:
    path = "status.reservedFor"
    consumers = as_list(status.get("reservedFor"))
    if len(consumers) > MOST_RESERVED:
        yield too_many(path, len(consumers), MOST_RESERVED)
    else:
        for index, consumer in enumerate(consumers):
            for field in ("resource", "name", "uid"):
                if not as_map(consumer).get(field):
                    yield required(f"{path}[{index}].{field}")
        uids = [as_map(consumer).get("uid") for consumer in consumers]
        for index, uid in enumerate(uids):
            if uid in uids[:index]:
                yield duplicate(f"{path}[{index}]", uid)
    if consumers and status.get("allocation") is None:
        yield forbidden(path, "may not be specified when `allocated` is not set")
    elif deleted:
        old_consumers = as_list(old_status.get("reservedFor"))
        if any(consumer not in old_consumers for consumer in consumers):
            yield forbidden(
                path,
                "new entries may not be added while `deallocationRequested` or"
                " `deletionTimestamp` are set",
            )


def _allocation_errors(path: str, allocation: Json, names: Collection[str]) -> Iterator[FieldError]:
    devices = as_map(allocation.get("devices"))
    found = as_list(devices.get("results"))
    if len(found) > MOST_RESULTS:
        yield too_many(f"{path}.devices.results", len(found), MOST_RESULTS)
        found = []
    for index, result in enumerate(found):
        yield from _result_errors(f"{path}.devices.results[{index}]", as_map(result), names)
    configs = as_list(devices.get("config"))
    if len(configs) > MOST_ALLOCATED_CONFIGS:
        yield too_many(f"{path}.devices.config", len(configs), MOST_ALLOCATED_CONFIGS)
        configs = []
    for index, entry in enumerate(configs):
        where, config = f"{path}.devices.config[{index}]", as_map(entry)
        source = config.get("source", "")
        if not source:
            yield required(f"{where}.source")
        elif source not in {"FromClaim", "FromClass"}:
            yield not_supported(f"{where}.source", source, ["FromClaim", "FromClass"])
        yield from _references_errors(f"{where}.requests", config.get("requests"), names)
        yield from config_errors(where, config)
    if allocation.get("nodeSelector") is not None:
        yield from slice_rules.node_selector_errors(
            f"{path}.nodeSelector", allocation["nodeSelector"]
        )


def _result_errors(path: str, result: Json, names: Collection[str]) -> Iterator[FieldError]:
    request = str(result.get("request", ""))
    yield from _reference_errors(f"{path}.request", request, names)
    yield from name_rules.driver(f"{path}.driver", result.get("driver"))
    yield from name_rules.pool(f"{path}.pool", result.get("pool"))
    yield from name_rules.label(f"{path}.device", result.get("device"))
    yield from slice_rules.binding_errors(path, result)
    if result.get("shareID") is not None:
        yield from name_rules.uid(f"{path}.shareID", result["shareID"])


def _device_errors(
    path: str, device: Json, allocated: Collection[DeviceKey]
) -> Iterator[FieldError]:
    yield from name_rules.driver(f"{path}.driver", device.get("driver"))
    yield from name_rules.pool(f"{path}.pool", device.get("pool"))
    yield from name_rules.label(f"{path}.device", device.get("device"))
    if device.get("shareID") is not None:
        yield from name_rules.uid(f"{path}.shareID", device["shareID"])
    key = device_key(device)
    if key not in allocated:
        shown = dict(zip(_KEY_NAMES, key, strict=True))
        yield invalid(path, shown, "must be an allocated device in the claim")
    conditions = as_list(device.get("conditions"))
    if len(conditions) > MOST_CONDITIONS:
        yield too_many(f"{path}.conditions", len(conditions), MOST_CONDITIONS)
    types = [as_map(condition).get("type", "") for condition in conditions]
    for index, condition in enumerate(conditions):
        where = f"{path}.conditions[{index}]"
        if types[index] in types[:index]:
            yield duplicate(f"{where}.type", types[index])
        yield from _condition_errors(where, as_map(condition))
    if device.get("data") is not None:
        yield from _raw_errors(f"{path}.data", device["data"])
    yield from _network_errors(f"{path}.networkData", as_map(device.get("networkData")))


def _condition_errors(path: str, condition: Json) -> Iterator[FieldError]:
    yield from name_rules.label_key(f"{path}.type", condition.get("type", ""))
    status = condition.get("status", "")
    if status not in {"True", "False", "Unknown"}:
        yield not_supported(f"{path}.status", status, ["False", "True", "Unknown"])
    generation = condition.get("observedGeneration", 0)
    assert isinstance(generation, int)
    if generation < 0:
        text = "must be greater than or equal to zero"
        yield invalid(f"{path}.observedGeneration", generation, text)
    if condition.get("lastTransitionTime") is None:
        yield required(f"{path}.lastTransitionTime")
    reason, message = str(condition.get("reason", "")), str(condition.get("message", ""))
    if not reason:
        yield required(f"{path}.reason")
    else:
        if not _REASON.fullmatch(reason):
            yield invalid(f"{path}.reason", reason, f"must be {_REASON.pattern}")
        if len(reason.encode()) > MOST_REASON_BYTES:
            yield too_long(f"{path}.reason", MOST_REASON_BYTES)
    if len(message.encode()) > MOST_MESSAGE_BYTES:
        yield too_long(f"{path}.message", MOST_MESSAGE_BYTES)


def _network_errors(path: str, network: Json) -> Iterator[FieldError]:
    limits = {
        "interfaceName": MOST_INTERFACE_BYTES,
        "hardwareAddress": MOST_HARDWARE_ADDRESS_BYTES,
    }
    for field, most in limits.items():
        if len(str(network.get(field, "")).encode()) > most:
            yield too_long(f"{path}.{field}", most)
    addresses = as_list(network.get("ips"))
    if len(addresses) > MOST_ADDRESSES:
        yield too_many(f"{path}.ips", len(addresses), MOST_ADDRESSES)
        return
    for index, address in enumerate(addresses):
        where = f"{path}.ips[{index}]"
        if address in addresses[:index]:
            yield duplicate(where, address)
        if not _is_cidr(str(address)):
            yield invalid(where, address, "must be a valid address in CIDR form")


def _is_cidr(text: str) -> bool:
    """Return True if the text is an address with prefix length in canonical form."""
    try:
        return str(ipaddress.ip_interface(text)) == text
    except ValueError:
        return False
