"""Findings about the node's GPUs: readable, published, usable by containers, not shared twice."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names, printable
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
"""Device plugins: prefix of the resource names, name, and means to keep it off a node."""
_LIVE: Final = frozenset({"Pending", "Running", "Unknown"})
_MARKS: Final = frozenset({names.ATTR_UUID, "pciBusID", "pcieBusID"})
"""Attributes by which drivers name a card, without their domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The ways in which containers can get the NVIDIA driver's libraries.

    Attributes:
        toolkit_cards: UUIDs of the cards that NVIDIA's container toolkit describes.
        libraries: Number of the driver's files that can be mounted instead.
        trouble: Reason why they cannot be mounted; "" if they can.
    """

    toolkit_cards: frozenset[str] = frozenset()
    libraries: int = 0
    trouble: str = ""


def library(recording: Mapping[str, Any]) -> Iterator[Finding]:
    """Report the NVML library and driver version in a recording."""
    version = recording.get("driver_version")
    if isinstance(version, Mapping):
        version = f"no version ({version.get(_RAW_ERROR)})"
    yield ok("NVML", f"{recording.get('library')}, driver {version}")


def unreadable(reason: str) -> Finding:
    """Return the problem that NVML cannot be read, so that nothing is published."""
    return problem(
        "NVML",
        reason,
        expected="the NVIDIA driver's libnvidia-ml.so.1 and an answer from it",
        cure="check the driver with nvidia-smi on the host; in a pod, mount its files and set "
        "--driver-root, or --nvml-library",
    )


def cards(gpus: Sequence[Gpu], left_out: Sequence[LeftOut]) -> Iterator[Finding]:
    """Judge the node's cards, published and left out."""
    if not gpus and not left_out:
        yield warning(
            "GPUs",
            "none: an empty pool is published",
            expected="at least one, where a node plugin runs",
            cure="keep the DaemonSet away from nodes without GPUs by a node selector",
        )
    for gpu in gpus:
        vram_gib = gpu.vram_bytes / 2**30
        facts = f"{gpu.product_name}, {gpu.milli_tflops / 1000:g} TFLOPS, {vram_gib:.0f} GiB"
        if gpu.tflops_source is TflopsSource.ESTIMATE:
            yield note(
                f"GPU {gpu.uuid}",
                f"{facts}; the TFLOPS are estimated: the model is in no table",
                cure="set them in a file for --gpu-models",
            )
        else:
            yield ok(f"GPU {gpu.uuid}", facts)
    for item in left_out:
        yield warning(
            item.subject,
            f"left out: {item.reason}",
            expected="a card that can be published",
            cure="fix the stated cause; the card is then published without a restart",
        )


def expansion(ratios: Oversubscription | None, unexpanded: Sequence[str]) -> Iterator[Finding]:
    """Judge whether a pool that extends its cards by host memory and disk can do so.

    Args:
        ratios: Oversubscription of the pool; None if it has none.
        unexpanded: Reason for each size that the pool needs and that cannot be read.
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
    """Judge how containers get the NVIDIA driver's libraries."""
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
    """Judge the device nodes that containers need."""
    if found:
        return ok("device nodes", path_or_trouble)
    return problem(
        "device nodes",
        path_or_trouble,
        expected="a character device; without it claims on this card fail",
        cure="run nvidia-modprobe -u -c 0 on the host, which creates them; in a pod, mount the "
        "host's /dev and set --dev-dir",
    )


def other_plugins(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge whether a device plugin allocates the same cards, by the resources of a Node.

    For the resources of Tensor Fusion's hypervisor see tensor_fusion_workers().
    """
    subject = f"extended resources of node {node['metadata']['name']}"
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
            subject,
            f"{taken}: {whose} allocates cards of this node",
            expected="one allocator for each card: this driver neither counts the pods of the "
            "device plugin nor limits them",
            cure=f"keep the device plugin away from this node ({off})",
        )
    if not found:
        yield ok(subject, "no device plugin that allocates GPUs")


def tensor_fusion_workers(
    node: Mapping[str, Any], workers: Sequence[Mapping[str, Any]] | None
) -> Iterator[Finding]:
    """Judge whether Tensor Fusion's scheduler allocates the same cards.

    Tensor Fusion's hypervisor registers the resources tensor-fusion.ai/index_0 to index_f, which
    distinguish its worker pods. The hypervisor itself is no problem: it enforces soft limits.

    Args:
        node: A Node object.
        workers: Tensor Fusion's worker pods on the node; None if they cannot be listed.
    """
    if not _resources(node, names.TENSOR_FUSION_INDEX):
        return
    subject = f"Tensor Fusion's hypervisor on node {node['metadata']['name']}"
    running = [
        pod
        for pod in workers or ()
        if (pod.get("status") or {}).get("phase") in _LIVE
        # A pod that this driver marked got its cards from Kubernetes' scheduler.
        and names.MARK_DRA_MARKS not in (pod["metadata"].get("annotations") or {})
    ]
    shown = [f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in running]
    what = {
        "expected": "one scheduler for each card: neither counts the other's allocations",
        "cure": "run pods without dra-enabled, which Tensor Fusion's scheduler places, on nodes "
        "of another GPUPool",
    }
    if running:
        by = names.TENSOR_FUSION_SCHEDULER
        text = f"{printable.first(shown)} got cards of this node from {by}"
        yield warning(subject, text, **what)
    elif workers is None:
        yield note(subject, "present; its worker pods could not be listed", **what)
    else:
        yield ok(subject, "present, without worker pods of Tensor Fusion's scheduler")


def _resources(node: Mapping[str, Any], prefix: str) -> str:
    """Return the node's extended resources with this prefix and their amounts; "" for none."""
    capacity = (node.get("status") or {}).get("capacity") or {}
    found = [
        f"{name}: {amount}"
        for name, amount in sorted(capacity.items())
        if name.startswith(prefix) and str(amount) != "0"
    ]
    return ", ".join(found)


def other_slices(node_name: str, slices: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Judge whether another DRA driver publishes cards that this driver publishes as well.

    Args:
        node_name: Name of the node; PCI addresses are unique only within a node.
        slices: The ResourceSlices of the node, of all drivers.
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
            f"publish {', '.join(sorted(devices))}, which this driver publishes as well",
            expected="one driver for each card: neither counts the other's claims",
            cure=f"keep either {driver} or this driver away from this node",
        )
    if not twice:
        yield ok(f"other DRA drivers on {node_name}", f"{len(others)}, none with these cards")


def _devices(slices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each device with its driver."""
    for item in slices:
        for device in item["spec"].get("devices") or []:
            yield item["spec"]["driver"], device


def _marks(device: Mapping[str, Any]) -> Iterator[str]:
    """Yield the attribute values that identify a card within its node, in lower case."""
    for name, value in (device.get("attributes") or {}).items():
        text = str(value.get("string") or "").lower()
        if text and name.rpartition("/")[2] in _MARKS:
            yield text
