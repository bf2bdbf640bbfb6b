"""Whether the node's GPUs can be read, published and handed to containers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Gpu, LeftOut, TflopsSource
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning

_RAW_ERROR: Final = "error"
_NVIDIA: Final = "nvidia.com/"
_HAMI_REGISTER: Final = "hami.io/node-nvidia-register"
"""The annotation in which HAMi's device plugin lists a node's cards."""
_PLUGINS: Final = (
    (
        _NVIDIA,
        "NVIDIA's device plugin",
        "nodeSelector or nvidia.com/gpu.deploy.device-plugin=false",
    ),
    ("volcano.sh/vgpu-", "Volcano's vGPU device plugin", "nodeSelector of its DaemonSet"),
    ("aliyun.com/gpu-", "the GPU share device plugin", "nodeSelector of its DaemonSet"),
)
"""Beginning of its resources' names, whose they are, and how it is kept off a node."""
_LIVE: Final = frozenset({"Pending", "Running", "Unknown"})
_MARKS: Final = frozenset({names.ATTR_UUID, "pciBusID", "pcieBusID"})
"""Attributes by which drivers name a card, without their domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How containers get at the driver's libraries.

    Attributes:
        toolkit_cards: UUIDs of the cards that NVIDIA's container toolkit describes.
        libraries: How many files of the driver can be mounted instead.
        trouble: Why they cannot; "" if they can.
    """

    toolkit_cards: frozenset[str] = frozenset()
    libraries: int = 0
    trouble: str = ""


def library(recording: Mapping[str, Any]) -> Iterator[Finding]:
    """What to think of the library that answered, as a recording names it."""
    version = recording.get("driver_version")
    if isinstance(version, Mapping):
        version = f"no version ({version.get(_RAW_ERROR)})"
    yield ok("NVML", f"{recording.get('library')}, driver {version}")


def unreadable(reason: str) -> Finding:
    """Nothing is published, because the cards cannot be read."""
    return problem(
        "NVML",
        reason,
        expected="the NVIDIA driver's libnvidia-ml.so.1 and an answer from it",
        cure="check the driver with nvidia-smi on the host; in a pod, mount its files and set "
        "--driver-root, or --nvml-library",
    )


def cards(gpus: Sequence[Gpu], left_out: Sequence[LeftOut]) -> Iterator[Finding]:
    """What to think of the node's cards."""
    if not gpus and not left_out:
        yield warning(
            "GPUs",
            "none: an empty pool is published",
            expected="at least one, where a node plugin runs",
            cure="keep the DaemonSet away from nodes without GPUs by a node selector",
        )
    for gpu in gpus:
        vram_gib = gpu.vram_bytes / 2**30
        told = f"{gpu.product_name}, {gpu.milli_tflops / 1000:g} TFLOPS, {vram_gib:.0f} GiB"
        if gpu.tflops_source is TflopsSource.ESTIMATE:
            yield note(
                f"GPU {gpu.uuid}",
                f"{told}; the TFLOPS are estimated: the model is in no table",
                cure="name them in a file for --gpu-models",
            )
        else:
            yield ok(f"GPU {gpu.uuid}", told)
    for item in left_out:
        yield warning(
            item.subject,
            f"left out: {item.reason}",
            expected="a card that can be published",
            cure="mend what the reason says; the card is published as soon as it can be",
        )


def expansion(ratios: Oversubscription | None, unexpanded: Sequence[str]) -> Iterator[Finding]:
    """Judge whether the pool can add the host's memory and disk to its cards, if it wants to.

    Args:
        unexpanded: Why a size that the pool needs cannot be read.
    """
    if ratios is None or not (ratios.host_memory_percent or ratios.host_disk_percent):
        return
    for reason in unexpanded:
        yield problem(
            "expansion",
            f"{reason}; virtual_vram lacks this part",
            expected="a size that can be read",
            cure="set data-dir to a folder on the host's data disk; in a pod, mount it",
        )
    if not unexpanded:
        yield ok(
            "expansion",
            f"memory {ratios.host_memory_percent} %, disk {ratios.host_disk_percent} % of the host",
        )


def access(gpus: Sequence[Gpu], found: Access) -> Iterator[Finding]:
    """What to think of the way by which containers get the driver's libraries."""
    real = [gpu for gpu in gpus if not gpu.simulated]
    if not real:
        return
    missing = [gpu.uuid for gpu in real if gpu.uuid not in found.toolkit_cards]
    if not missing:
        yield ok("driver libraries", "by the CDI spec of NVIDIA's container toolkit")
    elif not found.trouble:
        yield ok("driver libraries", f"{found.libraries} mounts from the driver root")
    else:
        yield problem(
            "driver libraries",
            f"{found.trouble} ({', '.join(missing)})",
            expected="a CDI spec of NVIDIA's container toolkit that names each card by its UUID, "
            "or the libraries under the driver root",
            cure="nvidia-ctk cdi generate --device-name-strategy=uuid "
            "--output=/etc/cdi/nvidia.yaml, or set --driver-root",
        )


def device_node(path_or_trouble: str, *, found: bool) -> Finding:
    """What to think of a device node that containers need."""
    if found:
        return ok("device nodes", path_or_trouble)
    return problem(
        "device nodes",
        path_or_trouble,
        expected="a character device, or claims on this card fail",
        cure="nvidia-modprobe -u -c 0 on the host makes them; in a pod, mount the host's /dev and "
        "set --dev-dir",
    )


def other_plugins(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether a device plugin hands out the same cards, as a Node object tells it.

    Tensor Fusion's own, of its hypervisor, is judged by tensor_fusion_workers().
    """
    looked_at = f"extended resources of node {node['metadata']['name']}"
    by_hami = _HAMI_REGISTER in (node["metadata"].get("annotations") or {})
    found = False
    for prefix, whose, off in _PLUGINS:
        taken = _resources(node, prefix)
        if not taken:
            continue
        found = True
        if prefix == _NVIDIA and by_hami:
            whose, off = "HAMi's device plugin", "remove its label gpu=on"  # noqa: PLW2901
        yield warning(
            looked_at,
            f"{taken}: {whose} hands out cards here",
            expected="one who hands out a card: the device plugin's pods are not counted "
            "by this driver, nor kept within limits",
            cure=f"keep the device plugin away from this node ({off})",
        )
    if not found:
        yield ok(looked_at, "no device plugin that hands out GPUs by itself")


def tensor_fusion_workers(
    node: Mapping[str, Any], workers: Sequence[Mapping[str, Any]] | None
) -> Iterator[Finding]:
    """Whether Tensor Fusion's scheduler hands out the same cards.

    Its hypervisor registers the resources tensor-fusion.ai/index_0 to index_f, by which its worker
    pods are told from each other. The hypervisor itself is welcome: it enforces soft limits.

    Args:
        node: A Node object.
        workers: Tensor Fusion's worker pods on the node; None if they cannot be listed.
    """
    if not _resources(node, names.TENSOR_FUSION_INDEX):
        return
    looked_at = f"Tensor Fusion's hypervisor on node {node['metadata']['name']}"
    running = [pod for pod in workers or () if (pod.get("status") or {}).get("phase") in _LIVE]
    shown = [f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in running[:5]]
    more = " and others" if len(running) > 5 else ""
    what = {
        "expected": "one scheduler for a card: neither counts what the other hands out",
        "cure": "keep pods without dra-enabled, which Tensor Fusion's scheduler places, on the "
        "nodes of another GPUPool",
    }
    if running:
        text = f"{', '.join(shown)}{more} have cards here by {names.TENSOR_FUSION_SCHEDULER}"
        yield warning(looked_at, text, **what)
    elif workers is None:
        yield note(looked_at, "there; its worker pods could not be looked at", **what)
    else:
        yield ok(looked_at, "there, without worker pods of its own scheduler")


def _resources(node: Mapping[str, Any], prefix: str) -> str:
    """The node's extended resources whose names begin so, with their amounts; "" for none."""
    capacity = (node.get("status") or {}).get("capacity") or {}
    found = [
        f"{name}: {amount}"
        for name, amount in sorted(capacity.items())
        if name.startswith(prefix) and str(amount) != "0"
    ]
    return ", ".join(found)


def other_slices(node_name: str, slices: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Whether another DRA driver publishes cards that this driver publishes, too.

    Args:
        node_name: Places of cards are compared within a node.
        slices: The ResourceSlices of the node, whoever's.
    """
    ours = {
        mark
        for driver, device in _devices(slices)
        if driver == names.DRIVER
        for mark in _marks(device)
    }
    twice: dict[str, set[str]] = {}
    others = {driver for driver, _ in _devices(slices)} - {names.DRIVER}
    for driver, device in _devices(slices):
        if driver != names.DRIVER and ours & set(_marks(device)):
            twice.setdefault(driver, set()).add(device["name"])
    for driver, devices in sorted(twice.items()):
        yield warning(
            f"ResourceSlices of {driver} on {node_name}",
            f"publish {', '.join(sorted(devices))}, which this driver publishes, too",
            expected="one driver for a card: neither counts the other's claims",
            cure=f"keep {driver} away from this node, or this driver",
        )
    if not twice:
        yield ok(f"other DRA drivers on {node_name}", f"{len(others)}, none with these cards")


def _devices(slices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each device with its driver."""
    for item in slices:
        for device in item["spec"].get("devices") or []:
            yield item["spec"]["driver"], device


def _marks(device: Mapping[str, Any]) -> Iterator[str]:
    """What tells a card from all others of its node."""
    for name, value in (device.get("attributes") or {}).items():
        text = str(value.get("string") or "").lower()
        if text and name.rpartition("/")[2] in _MARKS:
            yield text
