"""Checks of this driver's objects in the cluster: slices, DeviceClass, templates, CRDs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.app.doctor import daemonsets, kubernetes
from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.app.doctor.options import Place
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import classes, daemonset, pools, published
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.pools import Source

_GPUPOOLS: Final = (
    f"/apis/{names.TENSOR_FUSION_GROUP}/{names.TENSOR_FUSION_VERSION}/{names.GPUPOOLS}"
)


def slices(context: Context) -> Iterator[Finding]:
    """Check that the scheduler can use the slices of this node, or on a workstation of all."""
    probe, path = context.probe, context.resource_api.slices()
    selector = f"spec.driver={names.DRIVER}"
    if context.place is Place.NODE:
        name = context.settings.node_name
        found = probe.items(path, fieldSelector=f"{selector},spec.nodeName={name}")
        settings = context.settings
        own = pools.Source(kind=settings.pool_source, gpupool=settings.gpupool)
        cause = None if found else _awaited(context, [own], kubernetes.checked_nodes(context))
        yield from [cause] if cause else published.of_node(found, node_name=name)
        return
    nodes = probe.items("/api/v1/nodes")
    found = probe.items(path, fieldSelector=selector)
    plugins = [] if found else daemonsets.installed(context)
    cause = _awaited(context, map(daemonset.pool_source, plugins), nodes)
    yield from (
        [cause]
        if cause
        else published.of_cluster(found, nodes=[node["metadata"]["name"] for node in nodes])
    )


def _awaited(
    context: Context, sources: Iterable[Source], nodes: Iterable[Mapping[str, Any]]
) -> Finding | None:
    """Return the finding for nodes that publish nothing because they wait for a GPUPool."""
    for source in sources:
        if source.kind != "settings":
            stored = context.probe.items_if_served(_GPUPOOLS)
            if found := pools.awaited(source, stored, list(nodes)):
                return found
    return None


def device_class(context: Context) -> Iterator[Finding]:
    """Check the DeviceClass by which claims select this driver's GPUs."""
    root = f"/apis/{context.resource_api.api_version()}"
    path = f"{root}/deviceclasses/{names.DEVICE_CLASS}"
    yield from classes.device_class(context.probe.find(path))


def templates(context: Context) -> Iterator[Finding]:
    """Check the ResourceClaimTemplates that the webhook puts into pods."""
    root = f"/apis/{context.resource_api.api_version()}"
    probe = context.probe
    found = probe.items(f"{root}/resourceclaimtemplates")
    known = probe.items(f"{root}/deviceclasses")
    yield from classes.templates(
        [item for item in found if item["metadata"]["name"] == names.CLAIM_TEMPLATE],
        classes=[item["metadata"]["name"] for item in known],
    )


def known_pools(context: Context) -> Iterator[Finding]:
    """Check that the pools that nodes publish are GPUPools, if the cluster has any."""
    probe, selector = context.probe, f"spec.driver={names.DRIVER}"
    found = probe.items(context.resource_api.slices(), fieldSelector=selector)
    yield from pools.published(found, probe.items(_GPUPOOLS))


def crds(context: Context) -> Iterator[Finding]:
    """Check that Tensor Fusion's CRDs keep the fields that turn DRA on for the pods of a pool."""
    root = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for name in pools.DEFINITIONS:
        yield from pools.definition(name, context.probe.find(f"{root}/{name}"))
