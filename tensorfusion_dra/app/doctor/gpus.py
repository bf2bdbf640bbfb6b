"""Checks of the node's GPUs: readable, usable by containers, not handed out by other drivers."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.doctor.kubernetes import checked_nodes
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.doctor import gpus as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.gpus import Access
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.discovery.host import HostSizes
from tensorfusion_dra.driver.catalog import DeviceCatalog


def cards(context: Context) -> Iterator[Finding]:
    """Check what NVML answers, which cards are published, and how containers access them."""
    settings = context.settings
    with node_parts.discovery(settings) as discovery:
        reader = DeviceCatalog(
            discovery,
            node_parts.node(settings),
            host=HostSizes(settings.disk_folder),
        )
        try:
            yield from rules.library(discovery.raw())
            reader.refresh()
        except (RetryableError, FatalError) as error:
            yield rules.unreadable(str(error))
            return
    catalog = reader.current()
    assert catalog is not None  # it was just read
    gpus = [device.gpu for device in catalog.devices]
    yield from rules.cards(gpus, catalog.left_out)
    yield from rules.expansion(node_parts.node(settings).oversubscription, catalog.host_size_errors)
    yield from _access(context, gpus)


def competing_drivers(context: Context) -> Iterator[Finding]:
    """Check whether device plugins or other DRA drivers hand out the same cards."""
    probe, path = context.probe, context.resource_api.slices()
    for node in checked_nodes(context):
        name = node["metadata"]["name"]
        yield from rules.other_plugins(node)
        yield from rules.tensor_fusion_workers(node, _workers(context, name))
        slices = probe.items(path, fieldSelector=f"spec.nodeName={name}")
        yield from rules.other_slices(name, slices)


def _workers(context: Context, node_name: str) -> list[dict[str, Any]] | None:
    """Return Tensor Fusion's worker pods on a node; None without the right to list pods."""
    try:
        return context.probe.items(
            "/api/v1/pods",
            fieldSelector=f"spec.nodeName={node_name}",
            labelSelector=names.TENSOR_FUSION_WORKER,
        )
    except StatusError:
        return None


def _access(context: Context, gpus: list[Gpu]) -> Iterator[Finding]:
    offers = node_parts.node_facts(context.settings)
    real = [gpu for gpu in gpus if not gpu.simulated]
    if not real:
        return
    yield _device_nodes(offers.device_nodes.common)
    for gpu in real:
        if gpu.minor is not None:
            yield _device_nodes(partial(offers.device_nodes.of_card, gpu.minor))
    libraries, trouble = 0, ""
    try:
        libraries = len(offers.driver_files.mounts())
    except RetryableError as error:
        trouble = str(error)
    described = {gpu.uuid for gpu in real if offers.driver_files.toolkit_device(gpu.uuid)}
    access = Access(toolkit_cards=frozenset(described), libraries=libraries, trouble=trouble)
    yield from rules.access(real, access)


def _device_nodes(fetch: Callable[[], tuple[str, ...]]) -> Finding:
    try:
        return rules.device_node(", ".join(fetch()), found=True)
    except RetryableError as error:
        return rules.device_node(str(error), found=False)
