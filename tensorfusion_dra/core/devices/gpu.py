"""Facts about the cards of one node, whatever they were read from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

UNLIMITED: Final = 2**64 - 1
"""The memory limit of a cgroup without one (NVML_DEVICE_MEMORY_LIMIT_MAX)."""


def device_name(gpu_uuid: str) -> str:
    """Return the name of a device: the UUID of the card or partition, as a DNS label."""
    return gpu_uuid.lower()


def is_partition(device: str) -> bool:
    """Return True if a device of this name is a partition."""
    return device.startswith("mig-")


class Isolation(StrEnum):
    """Separation of a card's tenants (Tensor Fusion's isolation modes)."""

    SOFT = "soft"
    HARD = "hard"
    SHARED = "shared"
    PARTITIONED = "partitioned"


class Qos(StrEnum):
    """Levels of service."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class TflopsSource(StrEnum):
    """Source of a card's compute figure."""

    TABLE = "table"
    FILE = "file"
    ESTIMATE = "estimate"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card, or one partition of a card in MIG mode.

    A partition has UUID and amounts of its own, and its card's other facts.

    Attributes:
        uuid: In NVML's casing, for example ``GPU-8f3a...``, of a partition ``MIG-8f3a...``.
        index: NVML's index; the same as CUDA's only under CUDA_DEVICE_ORDER=PCI_BUS_ID.
        minor: The number in /dev/nvidia<minor>; None if the driver does not report it, and for a
            simulated card.
        product_name: NVML's name, for example ``NVIDIA A100-SXM4-80GB``.
        model: Short name by which users select the card, for example ``A100``.
        milli_tflops: Dense FP16 compute, in thousandths of a TFLOPS.
        vram_bytes: Total memory as NVML reports it.
        reserved_bytes: Part of vram_bytes that driver and firmware reserve, as NVML reports it; 0
            if the driver does not report it. No container can allocate it.
        compute_capability: Major and minor; (0, 0) if the driver does not report it.
        driver_version: Version of the kernel driver, as NVML prints it; "" if not reported.
        cuda_driver_version: Major and minor; (0, 0) if the driver does not report it.
        pci_bus_id: ``dddd:bb:ss.f`` in lower case; None if unknown.
        pcie_root: ``pcidddd:bb`` of the root complex; None if unknown.
        numa_node: None if unknown.
        simulated: True if the card does not exist, so that it has no device nodes.
        partition: NVML's name of the partition's profile, such as ``1g.10gb``; "" for a card.
        parent_uuid: The partition's card; "" for a card.
        gpu_instance: Number of the partition's GPU instance on its card; None for a card.
        capability_minors: The numbers in /dev/nvidia-caps/nvidia-cap<minor> of the partition's GPU
            instance and compute instance; empty for a card.
    """

    uuid: str
    index: int
    minor: int | None
    product_name: str
    model: str
    milli_tflops: int
    tflops_source: TflopsSource
    vram_bytes: int
    brand: str = ""
    architecture: str = ""
    compute_capability: tuple[int, int] = (0, 0)
    driver_version: str = ""
    cuda_driver_version: tuple[int, int] = (0, 0)
    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    simulated: bool = False
    reserved_bytes: int = 0
    partition: str = ""
    parent_uuid: str = ""
    gpu_instance: int | None = None
    capability_minors: tuple[int, ...] = ()

    @property
    def card_uuid(self) -> str:
        """UUID of the card; of a partition, that of its card."""
        return self.parent_uuid or self.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A card or device that exists but is not published, and the reason."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCard:
    """A card that the NVIDIA driver still counts but that no longer responds.

    Attributes:
        subject: As in LeftOut.
        uuid: None if the driver no longer reports it.
        pci_bus_id: As in Gpu; None if the driver no longer reports it.
        text: The driver's error.
    """

    subject: str
    uuid: str | None
    pci_bus_id: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """Memory and disk of the node, by which a pool may extend the cards' memory.

    Attributes:
        memory_bytes: Size of the machine's memory; 0 if unknown.
        disk_bytes: Size of the data disk; 0 if unknown.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All cards of the node at one moment, in NVML's order; of one in MIG mode its partitions.

    Attributes:
        lost: Cards among those left out that have fallen off the bus.
        recovery: Recovery action that the driver requests, by GPU UUID, as a number of NVML's
            nvmlDeviceGpuRecoveryAction_t. A card is missing if the driver does not report one.
    """

    gpus: tuple[Gpu, ...]
    left_out: tuple[LeftOut, ...] = ()
    lost: tuple[LostCard, ...] = ()
    recovery: Mapping[str, int] = field(default_factory=dict)
