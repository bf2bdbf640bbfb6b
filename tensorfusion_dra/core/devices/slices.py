"""ResourceSlices of the node: the wanted ones, and the writes that replace the stored ones.

A scheduler reads a resource pool as a whole: only slices of the pool's highest generation, and only
if there are as many as `resourceSliceCount`. plan() chooses the writes so that a reader never mixes
old and new devices:

- If one slice differs, one write replaces it, and the generation stays.
- If a slice is missing or several differ, all slices move to the next generation.
- Obsolete slices are deleted first, the oldest generation first. If the newest generation were
  deleted first, an older one would count again. New slices are created last.

Example: a node with 65 cards has two slices of generation 4, with 64 devices and 1 device. If the
attribute of one device changes, its slice is updated in generation 4. If the node gets 64 more
cards, both slices are updated to generation 5, and then a third is created in generation 5.

An API server with a feature gate off drops the gate's fields from what it stores. For gates that
are known to be off, plan() does not count such fields as a difference. Otherwise it would write
them again and again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.device import Device, Node
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.device_rules import KUBERNETES_DROPS, same, without

MAX_DEVICES: Final = 64
"""Maximum in a slice that has devices with taints. It holds for every slice, because a new taint
must not move devices to another one."""

Slice = Mapping[str, Any]
"""A ResourceSlice in the API's JSON form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """Writes in a safe order: first the deletes, then the updates, then the creates.

    Attributes:
        generation: The pool's generation after all writes.
        delete: Stored objects; each is to be deleted only if it is still the one that was read.
        update: Complete objects with the resourceVersion that was read.
        create: Complete objects.
        replaced: The stored objects that the updates replace.
    """

    generation: int
    delete: tuple[Slice, ...] = ()
    update: tuple[Slice, ...] = ()
    create: tuple[Slice, ...] = ()
    replaced: tuple[Slice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


class WriteReason(StrEnum):
    """Reason of a write.

    Attributes:
        START: The slices that this process found differ from what it publishes.
        DEVICES: Cards came or went.
        HEALTH: A card became unhealthy or healthy, or an enforcer's taint came or went.
        VALUES: Attributes, capacities, labels or the owner changed.
        REPAIR: Another writer changed or deleted the slices.
        RETRY: The write before failed.
    """

    START = "start"
    DEVICES = "devices"
    HEALTH = "health"
    VALUES = "values"
    REPAIR = "repair"
    RETRY = "retry"


def wanted(devices: Sequence[Device], node: Node, *, node_uid: str) -> tuple[Slice, ...]:
    """Return the node's slices without generation; one empty slice if there are no devices.

    The empty slice shows that the pool has no devices, which a missing slice would not.

    Args:
        devices: Those of the node.
        node: Their node.
        node_uid: UID of its Node object.
    """
    size, listed = MAX_DEVICES, [device.as_api() for device in devices]
    chunks = [listed[start : start + size] for start in range(0, len(listed), size)] or [[]]
    return tuple(
        {
            "metadata": {
                "name": slice_name(node.name, index),
                "labels": {
                    names.LABEL_MANAGED_BY: _fitted(node.name, name_rules.LABEL_BYTES),
                    names.LABEL_HOSTNAME: _fitted(node.name, name_rules.LABEL_BYTES),
                },
                # With the Node gone, Kubernetes' garbage collector removes the slice.
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": node.name,
                        "uid": node_uid,
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "driver": names.DRIVER,
                "nodeName": node.name,
                "pool": {"name": node.pool, "resourceSliceCount": len(chunks)},
                "devices": chunk,
            },
        }
        for index, chunk in enumerate(chunks)
    )


def slice_name(node_name: str, index: int) -> str:
    """Return ``tensor-fusion-resource-slice-<node>``, then ``...-1``, ``...-2``."""
    suffix = f"-{index}" if index else ""
    return (
        _fitted(names.SLICE_PREFIX + node_name, name_rules.SUBDOMAIN_BYTES - len(suffix)) + suffix
    )


def plan(
    wanted: Sequence[Slice], stored: Sequence[Slice], *, dropped: frozenset[str] = frozenset()
) -> SlicePlan:
    """Return the writes that turn the stored slices into the wanted ones; empty if none differ.

    Args:
        wanted: All slices of one pool, from wanted().
        stored: All ResourceSlices of this driver and node. Only those of them that is_own()
            accepts are deleted.
        dropped: Feature gates known to be off; missing fields of these gates are no difference.
    """
    pool = wanted[0]["spec"]["pool"]["name"]
    by_name = {item["metadata"]["name"]: item for item in stored}
    generation = max((_generation(item) for item in stored if _pool(item) == pool), default=0)
    kept: list[tuple[Slice, Slice]] = []
    missing: list[Slice] = []
    for item in wanted:
        old = by_name.get(item["metadata"]["name"])
        if old is not None and _pool(old) == pool and _generation(old) == generation:
            kept.append((item, old))
        else:
            missing.append(item)
    names_kept = {item["metadata"]["name"] for item, _ in kept}
    node_name = wanted[0]["spec"]["nodeName"]
    obsolete = [
        item
        for item in stored
        if item["metadata"]["name"] not in names_kept and is_own(item, node_name)
    ]
    # The oldest first: without the newest, an older generation would count again.
    obsolete.sort(key=_generation)
    changed = [(item, old) for item, old in kept if _differs(item, old, dropped)]

    if not missing and len(changed) <= 1:
        updates = changed
    else:
        generation += 1
        updates = kept
    return SlicePlan(
        generation=generation,
        delete=tuple(obsolete),
        update=tuple(_replacing(old, item, generation) for item, old in updates),
        create=tuple(
            {"kind": "ResourceSlice", **item, "spec": _at(item["spec"], generation)}
            for item in missing
        ),
        replaced=tuple(old for _, old in updates),
    )


def is_of_node(item: Slice, node_name: str) -> bool:
    """Return True for a slice of this driver for this node: a server may ignore field selectors."""
    spec = item.get("spec")
    found = spec if isinstance(spec, dict) else {}
    return (found.get("driver"), found.get("nodeName")) == (names.DRIVER, node_name)


def is_own(item: Slice, node_name: str) -> bool:
    """Return True if this driver wrote the slice on this node, so that it may be deleted.

    Such a slice is owned by the Node, or by an earlier Node object with the same name. A slice
    without an owner has to have one of the names from slice_name().
    """
    metadata = item["metadata"]
    owners = metadata.get("ownerReferences") or []
    if owners:
        named = all((o.get("kind"), o.get("name")) == ("Node", node_name) for o in owners)
    else:
        base = slice_name(node_name, 0)
        named = metadata["name"] == base or metadata["name"].startswith(f"{base}-")
    return named and is_of_node(item, node_name)


def other_writers(plan: SlicePlan) -> tuple[str, ...]:
    """Return the other field managers of stored slices that the plan replaces, newest first."""
    entries = [
        entry
        for item in (*plan.replaced, *plan.delete)
        for entry in item["metadata"].get("managedFields") or []
        if isinstance(entry, dict) and entry.get("manager") != names.FIELD_MANAGER
    ]
    entries.sort(key=lambda entry: str(entry.get("time")), reverse=True)
    return tuple(dict.fromkeys(str(entry.get("manager")) for entry in entries))


def dropped_gates(sent: Slice, stored: Slice) -> frozenset[str]:
    """Return the feature gates that explain why a stored slice has less than what was sent.

    Empty if it has everything, or if no known gates explain the whole difference.
    """
    devices, kept = sent["spec"]["devices"], _devices(stored)
    every = (frozenset[str](), *KUBERNETES_DROPS)
    return next((gates for gates in every if same(without(devices, gates), kept)), frozenset())


def write_reason(before: Sequence[Slice], wanted: Sequence[Slice]) -> WriteReason:
    """Return the reason to write wanted slices that differ from those that were wanted before.

    Args:
        before: Empty if this process has not compared any slices yet.
        wanted: What is to be stored.
    """
    if not before:
        return WriteReason.START
    old, new = _by_name(before), _by_name(wanted)
    if old.keys() != new.keys():
        return WriteReason.DEVICES
    if any(_health(new[name]) != _health(device) for name, device in old.items()):
        return WriteReason.HEALTH
    return WriteReason.VALUES


def _by_name(every: Sequence[Slice]) -> dict[str, Mapping[str, Any]]:
    return {device["name"]: device for item in every for device in item["spec"]["devices"]}


def _health(device: Mapping[str, Any]) -> object:
    """Return what shows the device's health; the taint may be turned off, the phase is not."""
    return device["attributes"][names.ATTR_PHASE], device.get("taints")


def _differs(item: Slice, old: Slice, dropped: frozenset[str]) -> bool:
    metadata, old_metadata = item["metadata"], old["metadata"]
    spec, old_spec = item["spec"], old["spec"]
    return (
        spec["pool"]["resourceSliceCount"] != old_spec["pool"].get("resourceSliceCount")
        or not same(without(spec["devices"], dropped), without(_devices(old), dropped))
        or not metadata["labels"].items() <= (old_metadata.get("labels") or {}).items()
        or metadata["ownerReferences"] != (old_metadata.get("ownerReferences") or [])
    )


def _replacing(old: Slice, item: Slice, generation: int) -> Slice:
    """Return the stored object with our fields; labels and annotations of other writers stay."""
    metadata = {**old["metadata"], "ownerReferences": item["metadata"]["ownerReferences"]}
    metadata["labels"] = {**(old["metadata"].get("labels") or {}), **item["metadata"]["labels"]}
    metadata.pop("managedFields", None)
    return {**old, "metadata": metadata, "spec": _at(item["spec"], generation)}


def _at(spec: Mapping[str, Any], generation: int) -> dict[str, Any]:
    return {**spec, "pool": {**spec["pool"], "generation": generation}}


def _pool(item: Slice) -> str:
    return str(item["spec"]["pool"]["name"])


def _generation(item: Slice) -> int:
    return int(item["spec"]["pool"]["generation"])


def _devices(item: Slice) -> Sequence[Mapping[str, Any]]:
    return item["spec"].get("devices") or []


def _fitted(text: str, limit: int) -> str:
    """Return the text, or its beginning and a hash if it is longer than the limit."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: limit - 9].rstrip('-.')}-{digest}"
