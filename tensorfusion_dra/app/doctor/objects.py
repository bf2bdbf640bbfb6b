"""Checks of this driver's objects in the cluster: slices, DeviceClass, templates, CRDs."""

from collections.abc import Iterator

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.app.doctor.options import Place
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import classes, pools, published
from tensorfusion_dra.core.doctor.finding import Finding


def slices(context: Context) -> Iterator[Finding]:
    """Check that the scheduler can use the slices of this node, or on a workstation of all."""
    probe, path = context.probe, context.resource_api.slices()
    selector = f"spec.driver={names.DRIVER}"
    if context.place is Place.NODE:
        name = context.settings.node_name
        found = probe.items(path, fieldSelector=f"{selector},spec.nodeName={name}") or []
        yield from published.of_node(found, node_name=name)
        return
    nodes = probe.items("/api/v1/nodes") or []
    yield from published.of_cluster(
        probe.items(path, fieldSelector=selector) or [],
        nodes=[node["metadata"]["name"] for node in nodes],
    )


def device_class(context: Context) -> Iterator[Finding]:
    """Check the DeviceClass by which claims select this driver's GPUs."""
    root = f"/apis/{context.resource_api.api_version()}"
    path = f"{root}/deviceclasses/{names.DEVICE_CLASS}"
    yield from classes.device_class(context.probe.find(path))


def templates(context: Context) -> Iterator[Finding]:
    """Check the ResourceClaimTemplates that the webhook puts into pods."""
    root = f"/apis/{context.resource_api.api_version()}"
    probe = context.probe
    found = probe.items(f"{root}/resourceclaimtemplates") or []
    known = probe.items(f"{root}/deviceclasses") or []
    yield from classes.templates(
        [item for item in found if item["metadata"]["name"] == names.CLAIM_TEMPLATE],
        classes=[item["metadata"]["name"] for item in known],
    )


def crds(context: Context) -> Iterator[Finding]:
    """Check that Tensor Fusion's CRDs keep the fields that turn DRA on for the pods of a pool."""
    root = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for name in pools.DEFINITIONS:
        yield from pools.definition(name, context.probe.find(f"{root}/{name}"))
