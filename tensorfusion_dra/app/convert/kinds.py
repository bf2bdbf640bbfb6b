"""Readers of the resource.k8s.io objects in a YAML text, and of their parts."""

from collections.abc import Iterator
from typing import Final

from yaml.nodes import MappingNode, Node

from tensorfusion_dra.app.convert import source
from tensorfusion_dra.core import names

CLAIM: Final = "ResourceClaim"
TEMPLATE: Final = "ResourceClaimTemplate"
SLICE: Final = "ResourceSlice"
CLASS: Final = "DeviceClass"

_CLAIM_SPEC: Final = {CLAIM: ("spec",), TEMPLATE: ("spec", "spec")}


def objects(documents: list[Node]) -> Iterator[MappingNode]:
    """Yield the objects of all documents, including the items of Lists."""
    for document in documents:
        found = source.value(document, "items")
        if source.text(document, "kind").endswith("List") and found is not None:
            yield from objects(list(source.items(found)))
        elif isinstance(document, MappingNode):
            yield document


def is_ours(item: Node) -> bool:
    """Return True for an object of resource.k8s.io of a kind that is converted."""
    kinds = (*_CLAIM_SPEC, SLICE, CLASS)
    group = source.text(item, "apiVersion").partition("/")[0]
    return group == names.RESOURCE_GROUP and source.text(item, "kind") in kinds


def requests(item: Node) -> Iterator[MappingNode]:
    """Yield the requests of a claim or claim template."""
    path = _CLAIM_SPEC.get(source.text(item, "kind"))
    if path is not None:
        for request in source.items(source.value(item, *path, "devices", "requests")):
            if isinstance(request, MappingNode):
                yield request


def choices(item: Node) -> Iterator[MappingNode]:
    """Yield the device requests of a claim: each ``exactly``, and each of ``firstAvailable``."""
    for request in requests(item):
        exactly = source.value(request, "exactly")
        listed = list(source.items(source.value(request, "firstAvailable")))
        for choice in (exactly, *listed):
            if isinstance(choice, MappingNode):
                yield choice


def selecting(item: Node) -> Iterator[MappingNode]:
    """Yield each mapping that may have selectors: device requests, and a DeviceClass's spec."""
    yield from choices(item)
    spec = source.value(item, "spec")
    if source.text(item, "kind") == CLASS and isinstance(spec, MappingNode):
        yield spec


def devices(item: Node) -> Iterator[MappingNode]:
    """Yield the devices of a slice."""
    if source.text(item, "kind") == SLICE:
        for device in source.items(source.value(item, "spec", "devices")):
            if isinstance(device, MappingNode):
                yield device
