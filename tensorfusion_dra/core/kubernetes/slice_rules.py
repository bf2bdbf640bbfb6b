"""The API server's rules for a ResourceSlice (validation.go, Kubernetes 1.36).

One bad device makes the API server refuse its whole slice. The driver therefore checks devices by
these rules before it writes, and leaves bad ones out. The simulated API server applies the same
rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tensorfusion_dra.core.kubernetes import device_rules, name_rules, node_selector_rules
from tensorfusion_dra.core.kubernetes.device_rules import quoted
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    invalid,
    required,
    too_many,
    wrong_type,
)
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, is_whole_number

MOST_DEVICES: Final = 128
MOST_DEVICES_ADVANCED: Final = 64
"""If any device of the slice has taints, consumed counters or an attribute that is a list."""
MOST_COUNTER_SETS: Final = 8

_LIST_ATTRIBUTES: Final = ("ints", "bools", "strings", "versions")
_NODE_FIELDS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def device_violations(device: Mapping[str, object]) -> tuple[str, ...]:
    """Return the API server's reasons for refusing a device; empty if it would accept it.

    Paths are relative to the device: ``attributes[model].string: Too long: ...``.
    """
    return tuple(str(error) for error in device_rules.device_errors("", device))


def slice_violations(spec: Mapping[str, object]) -> tuple[str, ...]:
    """Return the API server's reasons for refusing a ResourceSlice; empty if it would accept it."""
    return tuple(str(error) for error in slice_errors(spec))


def slice_errors(spec: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield every rule violation of a ResourceSlice's spec."""
    yield from name_rules.driver("spec.driver", spec.get("driver"))
    yield from _pool_errors(spec.get("pool"))
    yield from _node_errors(spec)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    yield from _devices_errors(spec)
    yield from _counter_sets_errors(spec.get("sharedCounters"))


def most_devices(devices: Sequence[object]) -> int:
    """Return the maximum number of devices in a slice that contains these devices."""
    return MOST_DEVICES_ADVANCED if any(map(_is_advanced, devices)) else MOST_DEVICES


def _is_advanced(device: object) -> bool:
    found = as_map(device)
    return bool(found.get("taints") or found.get("consumesCounters")) or any(
        as_map(attribute).get(name) is not None
        for attribute in as_map(found.get("attributes")).values()
        for name in _LIST_ATTRIBUTES
    )


def _pool_errors(pool: object) -> Iterator[FieldError]:
    found = as_map(pool)
    if pool is not None and not isinstance(pool, Mapping):
        yield wrong_type("spec.pool", pool, "an object")
    yield from name_rules.pool("spec.pool.name", found.get("name"))
    count, generation = found.get("resourceSliceCount", 0), found.get("generation", 0)
    if not is_whole_number(count) or count <= 0:
        yield invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if not is_whole_number(generation) or generation < 0:
        text = "must be greater than or equal to zero"
        yield invalid("spec.pool.generation", generation, text)


def _node_errors(spec: Mapping[str, object]) -> Iterator[FieldError]:
    present = [name for name in _NODE_FIELDS if spec.get(name) is not None]
    if spec.get("nodeName") == "":
        present.remove("nodeName")
        text = "must be either unset or set to a non-empty string"
        yield invalid("spec.nodeName", "", text)
    elif "nodeName" in present:
        yield from name_rules.subdomain("spec.nodeName", spec["nodeName"])
    if "nodeSelector" in present:
        yield from node_selector_rules.errors("spec.nodeSelector", spec["nodeSelector"])
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
        yield invalid("spec", quoted(present), f"{expected}, but multiple fields are set")


def _devices_errors(spec: Mapping[str, object]) -> Iterator[FieldError]:
    devices = as_list(spec.get("devices"))
    if not isinstance(spec.get("devices", []), list | None):
        yield wrong_type("spec.devices", spec["devices"], "a list")
    most = most_devices(devices)
    if len(devices) > most:
        yield too_many("spec.devices", len(devices), most)
        return
    seen: set[object] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        if not isinstance(device, Mapping):
            yield wrong_type(path, device, "an object")
            continue
        yield from device_rules.device_errors(
            path, device, per_device_nodes=spec.get("perDeviceNodeSelection") is True
        )
        name = device.get("name", "")
        if isinstance(name, str) and name in seen:
            yield duplicate(path, name)
        seen.add(name if isinstance(name, str) else None)


def _counter_sets_errors(counter_sets: object) -> Iterator[FieldError]:
    path = "spec.sharedCounters"
    found = as_list(counter_sets)
    if counter_sets is not None and not isinstance(counter_sets, list):
        yield wrong_type(path, counter_sets, "a list")
    if len(found) > MOST_COUNTER_SETS:
        yield too_many(path, len(found), MOST_COUNTER_SETS)
        return
    names: list[object] = []
    for index, counter_set in enumerate(found):
        where = f"{path}[{index}]"
        name = as_map(counter_set).get("name")
        if name in (None, ""):
            yield required(f"{where}.name")
        else:
            yield from name_rules.label(f"{where}.name", name)
        if name in names:
            yield duplicate(where, name)
        names.append(name)
        yield from device_rules.counters_errors(
            f"{where}.counters", as_map(counter_set).get("counters")
        )
