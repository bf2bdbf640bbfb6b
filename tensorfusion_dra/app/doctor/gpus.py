"""Checks of the node's GPUs: readable, usable by containers, not allocated by others, limited."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.app.doctor.kubernetes import checked_nodes
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Advice
from tensorfusion_dra.core.claims.prepared import Mount
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices.gpu import Gpu, LeftOut, TflopsSource
from tensorfusion_dra.core.errors import FatalError, RetryableError, StatusError
from tensorfusion_dra.core.finding import Finding, Level, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes import node_fit
from tensorfusion_dra.discovery.host import MachineSizes
from tensorfusion_dra.driver.publish import CatalogBuilder, OtherUsersReader
from tensorfusion_dra.enforcers import choice as choices

_NVIDIA: Final = "nvidia.com/"
_PLUGINS: Final = (
    (
        _NVIDIA,
        "NVIDIA's device plugin",
        "nodeSelector or nvidia.com/gpu.deploy.device-plugin=false",
    ),
    ("volcano.sh/vgpu-", "Volcano's vGPU device plugin", "nodeSelector of its DaemonSet"),
    ("aliyun.com/gpu-", "the GPU share device plugin", "nodeSelector of its DaemonSet"),
)
"""Device plugins: prefix of the resource names, name, and means to keep it off a node."""


def cards(context: Context) -> Iterator[Finding]:
    """Check what NVML answers, which cards are published, and how containers access them."""
    settings = context.settings
    with node_parts.discovery(settings) as discovery:
        reader = CatalogBuilder(
            discovery,
            node_parts.node(settings),
            host=MachineSizes(settings.disk_folder),
            other_users=OtherUsersReader(node_parts.allocations(settings)),
        )
        try:
            recording = discovery.raw()
            reader.refresh()
        except (RetryableError, FatalError) as error:
            yield problem(
                "NVML",
                str(error),
                expected="the NVIDIA driver's libnvidia-ml.so.1 and an answer from it",
                remedy="check the driver with nvidia-smi on the host; in a pod, mount its files "
                "and "
                "set --driver-root, or --nvml-library",
            )
            return
    yield ok("NVML", f"{recording.library}, driver {recording.driver_version}")
    catalog = reader.catalog.current()
    assert catalog is not None  # it was just read
    gpus = [device.gpu for device in catalog.devices]
    yield from published(gpus, catalog.left_out)
    yield from used_by_others(
        (device.gpu.uuid, str(device.attributes[names.ATTR_USED_BY])) for device in catalog.devices
    )
    offers = node_parts.card_files(settings)
    if real := [gpu for gpu in gpus if not gpu.simulated]:
        yield device_nodes(offers.device_nodes.common)
        for gpu in real:
            if gpu.minor is not None:
                yield device_nodes(partial(offers.device_nodes.of_card, gpu.minor))
        files = offers.driver_files
        undescribed = [gpu.uuid for gpu in real if not files.toolkit_device(gpu.uuid)]
        yield driver_libraries(undescribed, files.mounts)


def competing_drivers(context: Context) -> Iterator[Finding]:
    """Check whether device plugins or other DRA drivers hand out the same cards."""
    enforcers = node_parts.enforcers(context.settings).values()
    for node in checked_nodes(context):
        yield from other_plugins(node)
        workers = None
        with suppress(StatusError):  # without the permission to list pods
            workers = context.cluster.items(
                "/api/v1/pods",
                fieldSelector=f"spec.nodeName={node['metadata']['name']}",
                labelSelector=names.TENSOR_FUSION_WORKER,
            )
        for enforcer in enforcers:
            yield from map(_advised, enforcer.examine(node, workers))
    if context.place is Place.WORKSTATION:
        yield from used_by_others(
            (device["name"], (device["attributes"].get(names.ATTR_USED_BY) or {}).get("string", ""))
            for item in context.cluster.slices(fieldSelector=f"spec.driver={names.DRIVER}")
            for device in item["spec"].get("devices") or ()
        )


def published(gpus: Sequence[Gpu], left_out: Sequence[LeftOut]) -> Iterator[Finding]:
    """Judge the node's cards, published and left out."""
    if not gpus and not left_out:
        yield warning(
            "GPUs",
            "none: an empty pool is published",
            expected="at least one, where a node plugin runs",
            remedy="keep the DaemonSet away from nodes without GPUs by a node selector",
        )
    for gpu in gpus:
        facts = (
            f"{gpu.product_name}, {gpu.milli_tflops / 1000:g} TFLOPS, "
            f"{gpu.vram_bytes / 2**30:.0f} GiB"
        )
        if gpu.tflops_source is TflopsSource.ESTIMATE:
            yield note(
                f"GPU {gpu.uuid}",
                f"{facts}; the TFLOPS are estimated: the model is in no table",
                remedy="set them in a file for --gpu-models",
            )
        else:
            yield ok(f"GPU {gpu.uuid}", facts)
    for item in left_out:
        yield warning(
            item.subject,
            f"left out: {item.reason}",
            expected="a card that can be published",
            remedy="fix the stated cause; the card is then published without a restart",
        )


def used_by_others(users: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Judge which cards a device plugin or another DRA driver gives to containers as well.

    Args:
        users: Card and attribute used_by of each device.
    """
    for card, user in users:
        if user:
            yield warning(
                f"GPU {card}",
                f"{user} gives it to containers as well",
                expected="this driver alone; until then a taint keeps claims away",
                remedy=f"keep {user} off this node, and end the pods that have GPUs from it",
            )


def device_nodes(fetch: Callable[[], Sequence[str]]) -> Finding:
    """Judge the device nodes that containers need."""
    try:
        return ok("device nodes", ", ".join(fetch()))
    except RetryableError as error:
        return problem(
            "device nodes",
            str(error),
            expected="a character device; without it claims on this card fail",
            remedy="run nvidia-modprobe -u -c 0 on the host, which creates them; in a pod, mount "
            "the host's /dev and set --dev-dir",
        )


def driver_libraries(undescribed: Sequence[str], fetch: Callable[[], Sequence[Mount]]) -> Finding:
    """Judge how containers get the NVIDIA driver's libraries.

    Args:
        undescribed: UUIDs of the cards that NVIDIA's container toolkit does not describe.
        fetch: Returns the mounts of the libraries, which these cards need.
    """
    if not undescribed:
        return ok("driver libraries", "by the CDI spec of NVIDIA's container toolkit")
    try:
        return ok("driver libraries", f"{len(fetch())} mounts from the driver root")
    except RetryableError as error:
        return problem(
            "driver libraries",
            f"{error} ({', '.join(undescribed)})",
            expected="a CDI spec of NVIDIA's container toolkit that names each card by its UUID, "
            "or the libraries under the driver root",
            remedy="nvidia-ctk cdi generate --device-name-strategy=uuid "
            "--output=/etc/cdi/nvidia.yaml, or set --driver-root",
        )


def other_plugins(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge whether a device plugin allocates the same cards, by the resources of a Node.

    For resources of an enforcer's software see Enforcer.examine().
    """
    subject = f"extended resources of node {node['metadata']['name']}"
    # HAMi's device plugin lists the node's cards there.
    by_hami = "hami.io/node-nvidia-register" in (node["metadata"].get("annotations") or {})
    found = False
    for prefix, whose, off in _PLUGINS:
        taken = node_fit.extended_resources(node, prefix)
        if not taken:
            continue
        found = True
        if prefix == _NVIDIA and by_hami:
            whose, off = "HAMi's device plugin", "remove its label gpu=on"  # noqa: PLW2901
        yield warning(
            subject,
            f"{taken}: {whose} allocates cards of this node",
            expected="one allocator for each card: this driver neither counts the pods of the "
            "device plugin nor limits them",
            remedy=f"keep the device plugin away from this node ({off})",
        )
    if not found:
        yield ok(subject, "no device plugin that allocates GPUs")


def alive(context: Context) -> Iterator[Finding]:
    """Check that the enforcer of shares in soft isolation is alive."""
    settings = context.settings
    if settings.simulated_gpus:
        yield ok(f"enforcer {settings.enforcer}", "simulated GPUs: there is nothing to enforce")
        return
    enforcer = node_parts.node_enforcer(settings)
    enforcer.of_devices(node_parts.node(settings))  # whose pool may expand the cards' memory
    choice, is_required = enforcer.of_new_claim(), settings.require_enforcement
    found = choice.sign.verdict
    subject = "enforcer auto" if choice.none_found else f"life of enforcer {choice.enforcer}"
    text = f"{found.text}: {choices.consequence(choice.sign, is_required=is_required)}"
    if found.state is State.ENFORCED:
        yield ok(subject, found.text)
    elif found.reason == verdicts.NO_ENFORCER:
        yield note(subject, text)
    elif found.state is State.UNKNOWN:
        yield note(subject, found.text)
    elif choices.refuses(choice.sign, is_required=is_required):
        yield problem(subject, text, expected="a live enforcer", remedy=choice.remedy)
    else:
        yield warning(
            subject,
            text,
            expected="a live enforcer",
            remedy=f"{choice.remedy}; refuse such claims with require-enforcement=true",
        )
    yield from map(_advised, choice.sign.advice)


def _advised(advice: Advice) -> Finding:
    return Finding(
        level=Level(advice.level),
        subject=advice.subject,
        found=advice.found,
        expected=advice.expected,
        remedy=advice.remedy,
    )


def claims(context: Context) -> Iterator[Finding]:
    """Check whether the limits of the prepared claims hold now."""
    settings = context.settings
    prepared = node_parts.recorded(settings)
    count = 0
    for claim, found in zip(prepared, node_parts.verdicts_now(settings, prepared), strict=True):
        for share, each in zip(claim.shares, found, strict=True):
            subject = f"limits of claim {claim.ref} on {share.device}"
            text = f"{each.state} ({each.reason}): {each.text}"
            if each.reason == verdicts.NO_ENFORCER:
                yield note(subject, text)
            elif each.state is State.NOT_ENFORCED:
                yield warning(
                    subject,
                    text,
                    expected="Enforced",
                    remedy="see docs/limits.md, How to see whether a limit holds",
                )
            elif each.state is State.UNKNOWN and each.reason != verdicts.SIMULATED:
                yield note(subject, text)
            count += each.state is State.ENFORCED
    if count:
        yield ok("limits of prepared claims", f"shares that are Enforced: {count}")
