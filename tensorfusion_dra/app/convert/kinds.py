"""The objects of resource.k8s.io in a YAML text, and their parts."""

from collections.abc import Iterator
from typing import Final

from yaml.nodes import MappingNode, Node

from tensorfusion_dra.app.convert import source

GROUP: Final = "resource.k8s.io"
CLAIM: Final = "ResourceClaim"
TEMPLATE: Final = "ResourceClaimTemplate"
SLICE: Final = "ResourceSlice"
CLASS: Final = "DeviceClass"

_CLAIM_SPEC: Final = {CLAIM: ("spec",), TEMPLATE: ("spec", "spec")}


def objects(documents: list[Node]) -> Iterator[MappingNode]:
    """The objects of all documents, those in lists among them."""
    for document in documents:
        found = source.value(document, "items")
        if source.text(document, "kind").endswith("List") and found is not None:
            yield from objects(list(source.items(found)))
        elif isinstance(document, MappingNode):
            yield document


def is_ours(item: Node) -> bool:
    """Whether it is of resource.k8s.io, and of a kind that is converted."""
    kinds = (*_CLAIM_SPEC, SLICE, CLASS)
    group = source.text(item, "apiVersion").partition("/")[0]
    return group == GROUP and source.text(item, "kind") in kinds


def requests(item: Node) -> Iterator[MappingNode]:
    """The requests of a claim or a claim's template."""
    path = _CLAIM_SPEC.get(source.text(item, "kind"))
    if path is not None:
        for request in source.items(source.value(item, *path, "devices", "requests")):
            if isinstance(request, MappingNode):
                yield request


def choices(item: Node) -> Iterator[MappingNode]:
    """Where a claim says what devices it wants: ``exactly``, and each of ``firstAvailable``."""
    for request in requests(item):
        exactly = source.value(request, "exactly")
        listed = list(source.items(source.value(request, "firstAvailable")))
        for choice in (exactly, *listed):
            if isinstance(choice, MappingNode):
                yield choice


def selecting(item: Node) -> Iterator[MappingNode]:
    """Everything that has selectors."""
    yield from choices(item)
    spec = source.value(item, "spec")
    if source.text(item, "kind") == CLASS and isinstance(spec, MappingNode):
        yield spec


def devices(item: Node) -> Iterator[MappingNode]:
    """The devices of a slice."""
    if source.text(item, "kind") == SLICE:
        for device in source.items(source.value(item, "spec", "devices")):
            if isinstance(device, MappingNode):
                yield device
