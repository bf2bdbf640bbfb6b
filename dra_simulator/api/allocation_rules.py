"""The API server's rules for the status of a ResourceClaim (validation.go)."""

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from dra_simulator.api import claim_rules
from tensorfusion_dra.core.kubernetes import device_rules, name_rules, node_selector_rules
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

MOST_RESULTS: Final = 32
MOST_CONFIGS: Final = 64
MOST_RESERVED: Final = 256
MOST_CONDITIONS: Final = 8
MOST_ADDRESSES: Final = 16
MOST_INTERFACE_BYTES: Final = 256
MOST_HARDWARE_ADDRESS_BYTES: Final = 128
MOST_REASON_BYTES: Final = 1024
MOST_MESSAGE_BYTES: Final = 32 * 1024

_REASON: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?")


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
        names = claim_rules.request_names(as_map(claim.get("spec")))
        yield from _allocation_errors("status.allocation", as_map(allocation), names)


_KEY_NAMES: Final = ("Driver", "Pool", "Device", "ShareID")


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
    if len(configs) > MOST_CONFIGS:
        yield too_many(f"{path}.devices.config", len(configs), MOST_CONFIGS)
        configs = []
    for index, entry in enumerate(configs):
        where, config = f"{path}.devices.config[{index}]", as_map(entry)
        source = config.get("source", "")
        if not source:
            yield required(f"{where}.source")
        elif source not in {"FromClaim", "FromClass"}:
            yield not_supported(f"{where}.source", source, ["FromClaim", "FromClass"])
        yield from claim_rules.references_errors(f"{where}.requests", config.get("requests"), names)
        yield from claim_rules.config_errors(where, config)
    if allocation.get("nodeSelector") is not None:
        yield from node_selector_rules.errors(f"{path}.nodeSelector", allocation["nodeSelector"])


def _result_errors(path: str, result: Json, names: Collection[str]) -> Iterator[FieldError]:
    request = str(result.get("request", ""))
    yield from claim_rules.reference_errors(f"{path}.request", request, names)
    yield from name_rules.driver(f"{path}.driver", result.get("driver"))
    yield from name_rules.pool(f"{path}.pool", result.get("pool"))
    yield from name_rules.label(f"{path}.device", result.get("device"))
    yield from device_rules.binding_errors(path, result)
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
        yield from claim_rules.raw_errors(f"{path}.data", device["data"])
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
