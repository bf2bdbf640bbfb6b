"""Second pass: names, values and missing entries, in objects with all entries in their places."""

from typing import Final

from yaml.nodes import MappingNode, Node, ScalarNode

from tensorfusion_dra.app.convert import kinds, source
from tensorfusion_dra.app.convert.changes import Changes
from tensorfusion_dra.core import names

VERSION: Final = f"{names.RESOURCE_GROUP}/v1"

_OLD_VERSIONS: Final = frozenset(
    {f"{names.RESOURCE_GROUP}/v1beta1", f"{names.RESOURCE_GROUP}/v1beta2"}
)
_ATTRIBUTES: Final = {
    "stringValue": "string",
    "intValue": "int",
    "boolValue": "bool",
    "versionValue": "version",
}


def find(item: MappingNode, changes: Changes) -> None:
    """Collect the changes in one object of resource.k8s.io."""
    _version(item, changes)
    for node in kinds.selecting(item):
        _selectors(node, changes)
    for choice in kinds.choices(item):
        if source.entry(choice, "deviceClassName") is None:
            text = f"deviceClassName is required: {names.DEVICE_CLASS}"
            changes.reason_for_addition(choice, text)
            after = source.entry(choice, "name")
            changes.insert(choice, "deviceClassName", names.DEVICE_CLASS, after=after)
    if source.text(item, "kind") == kinds.TEMPLATE:
        _labels(item, changes)
    for device in kinds.devices(item):
        _attributes(device, changes)


def _version(item: MappingNode, changes: Changes) -> None:
    version = source.value(item, "apiVersion")
    if not isinstance(version, ScalarNode) or version.value == VERSION:
        return
    if version.value in _OLD_VERSIONS:
        changes.reason(version, f"{version.value} is not served by default since 1.34: {VERSION}")
        changes.replace(version, VERSION)
    else:
        expected = ", ".join([VERSION, *sorted(_OLD_VERSIONS)])
        changes.problem(version, f"apiVersion: found {version.value}, expected one of {expected}")


def _selectors(node: MappingNode, changes: Changes) -> None:
    found = source.entry(node, "selector")
    if found is None:
        return
    if source.entry(node, "selectors") is not None:
        changes.problem(found.key, "selector beside selectors: expected selectors alone")
        return
    changes.reason(found.key, "unknown field selector: renamed to selectors, a list")
    changes.rename(found, "selectors")
    if isinstance(found.value, MappingNode):
        changes.list_of_one(found.value)


def _labels(item: MappingNode, changes: Changes) -> None:
    """Copy the label for finding claims into the template's spec.

    Only labels in spec.metadata are copied to the claims.
    """
    label = source.entry(item, "metadata", "labels", names.LABEL_CLAIM_TEMPLATE)
    spec = source.value(item, "spec")
    metadata = source.value(spec, "metadata")
    labels = source.value(metadata, "labels")
    if (
        label is None
        or not isinstance(spec, MappingNode)
        or not changes.source.is_one_line(label.value)
    ):
        return
    if source.entry(labels, names.LABEL_CLAIM_TEMPLATE) is not None:
        return
    changes.reason(
        label.key, "a template's own labels are not copied to its claims: spec.metadata.labels are"
    )
    value = changes.source.copy(label.value)
    if isinstance(labels, MappingNode):
        changes.insert(labels, names.LABEL_CLAIM_TEMPLATE, value)
    elif isinstance(metadata, MappingNode):
        changes.insert(metadata, "labels", {names.LABEL_CLAIM_TEMPLATE: value})
    else:
        changes.insert(spec, "metadata", {"labels": {names.LABEL_CLAIM_TEMPLATE: value}})


def _attributes(device: MappingNode, changes: Changes) -> None:
    for attribute in source.entries(source.value(device, "attributes")):
        for found in source.entries(attribute.value):
            new = _ATTRIBUTES.get(str(found.key.value))
            if new is not None:
                changes.reason(found.key, f"unknown field {found.key.value}: renamed to {new}")
                changes.rename(found, new)


def hand_written(item: Node, changes: Changes) -> None:
    """Note on a slice of this driver that the node plugin publishes such slices itself."""
    driver = source.value(item, "spec", "driver")
    is_slice = source.text(item, "kind") == kinds.SLICE
    if is_slice and isinstance(driver, ScalarNode) and driver.value == names.DRIVER:
        changes.note(
            driver,
            "the node plugin publishes its slices itself; the kubelet deletes those of a node on "
            "which it does not run",
        )


def duplicate_keys(node: Node, changes: Changes) -> None:
    """Report keys that are set more than once, which Kubernetes refuses."""
    lines: dict[str, int] = {}
    for entry in source.entries(node):
        key = str(entry.key.value)
        if key in lines:
            text = f"{key}: found twice, expected once; first in line {lines[key]}"
            changes.problem(entry.key, text)
        lines.setdefault(key, entry.line + 1)
        duplicate_keys(entry.value, changes)
    for item in source.items(node):
        duplicate_keys(item, changes)
