"""Checks of this driver's objects: DaemonSet, slices, DeviceClass, templates, GPUPools."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.doctor import kubernetes
from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.cluster.api import resource_path, segment
from tensorfusion_dra.cluster.watch import GPUPOOLS, TEMPLATES
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import objects as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.objects import Source

_DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
_NODE_PLUGIN: Final = (
    "app.kubernetes.io/name=tensorfusion-dra,app.kubernetes.io/component=node-plugin"
)
_RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"


def installed(context: Context) -> Sequence[dict[str, Any]]:
    """Return the DaemonSets of the node plugin, of all namespaces."""
    return context.cluster.items(_DAEMONSETS, labelSelector=_NODE_PLUGIN)


def pods(context: Context) -> Iterator[Finding]:
    """Check that the DaemonSet has pods, and name the label or RuntimeClass that it lacks."""
    for item in installed(context):
        name = rules.runtime_class(item)
        there = not name or context.cluster.find(f"{_RUNTIME_CLASSES}/{segment(name)}") is not None
        nodes = context.cluster.items("/api/v1/nodes")
        yield from rules.pods(item, nodes, has_runtime_class=there)


def slices(context: Context) -> Iterator[Finding]:
    """Check that the scheduler can use the slices of this node, or on a workstation of all."""
    settings, selector, node_name = context.settings, f"spec.driver={names.DRIVER}", ""
    if context.place is Place.NODE:
        node_name = settings.node_name
        selector += f",spec.nodeName={node_name}"
    found = context.cluster.slices(fieldSelector=selector)
    cause = None
    if not found and node_name:
        own = Source(kind=settings.pool_source, gpupool=settings.gpupool)
        cause = _awaited(context, [own], kubernetes.checked_nodes(context))
    elif not found:
        sources = map(rules.pool_source, installed(context))
        cause = _awaited(context, sources, context.cluster.items("/api/v1/nodes"))
    yield from [cause] if cause else rules.published(found, node_name=node_name)


def _awaited(
    context: Context, sources: Iterable[Source], nodes: Iterable[Mapping[str, Any]]
) -> Finding | None:
    """Return the finding for nodes that publish nothing because they wait for a GPUPool."""
    for source in sources:
        if source.kind != "settings":
            stored = context.cluster.items_if_served(GPUPOOLS)
            if found := rules.awaited_pool(source, stored, list(nodes)):
                return found
    return None


def device_class(context: Context) -> Iterator[Finding]:
    """Check the DeviceClass by which claims select this driver's GPUs."""
    path = resource_path("deviceclasses", name=names.DEVICE_CLASS)
    yield from rules.device_class(context.cluster.find(path))


def templates(context: Context) -> Iterator[Finding]:
    """Check the ResourceClaimTemplates that the webhook puts into pods."""
    cluster = context.cluster
    found = cluster.items(resource_path("resourceclaimtemplates"))
    known = cluster.items(resource_path("deviceclasses"))
    yield from rules.templates(
        [item for item in found if item["metadata"]["name"] == names.CLAIM_TEMPLATE],
        classes=[item["metadata"]["name"] for item in known],
    )


def known_pools(context: Context) -> Iterator[Finding]:
    """Check that nodes publish pools that are GPUPools, and how these want pods to be placed."""
    found = context.cluster.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    pools = context.cluster.items(GPUPOOLS)
    yield from rules.published_pools(found, pools)
    yield from rules.placement_modes(pools, context.cluster.items(TEMPLATES) if pools else [])


def crds(context: Context) -> Iterator[Finding]:
    """Check that Tensor Fusion's CRDs keep the fields that turn DRA on for the pods of a pool."""
    root = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for name in rules.DEFINITIONS:
        yield from rules.definition(name, context.cluster.find(f"{root}/{name}"))
