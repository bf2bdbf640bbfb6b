"""What is known of the cards of one node, whoever read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TflopsSource(StrEnum):
    """Where a card's compute figure comes from."""

    TABLE = "table"
    FILE = "file"
    ESTIMATE = "estimate"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card.

    Attributes:
        uuid: In NVML's casing, for example ``GPU-8f3a...``.
        index: NVML's index; the same as CUDA's only under CUDA_DEVICE_ORDER=PCI_BUS_ID.
        minor: The number in /dev/nvidia<minor>; None if the driver does not tell, or simulated.
        product_name: NVML's name, for example ``NVIDIA A100-SXM4-80GB``.
        model: Its short name, as users select it, for example ``A100``.
        milli_tflops: Dense FP16 compute, in thousandths of a TFLOPS.
        vram_bytes: Total memory as NVML reports it.
        reserved_bytes: Part of it that driver and firmware keep for themselves, as NVML reports it;
            0 if the driver does not tell. No container can allocate it.
        compute_capability: Major and minor; (0, 0) if the driver does not tell.
        driver_version: The kernel driver's, as NVML prints it; "" if it does not tell.
        cuda_driver_version: Major and minor; (0, 0) if the driver does not tell.
        pci_bus_id: ``dddd:bb:ss.f`` in lower case; None if unknown.
        pcie_root: ``pcidddd:bb`` of the root complex; None if unknown.
        numa_node: None if unknown.
        simulated: There is no such card, and so there are no device nodes for it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A card or device that is there but not published, and why."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCard:
    """A card that the driver still counts and that answers no more.

    Attributes:
        subject: As in LeftOut.
        uuid: None if the driver does not tell it any more.
        pci_bus_id: As in Gpu; None if the driver does not tell it any more.
        text: What the driver said.
    """

    subject: str
    uuid: str | None
    pci_bus_id: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """What the node has beside its cards, into which a pool may expand their memory.

    Attributes:
        memory_bytes: Of the machine; 0 if unknown.
        disk_bytes: Of the data disk; 0 if unknown.
    """

    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All cards of the node at one moment, in NVML's order.

    Attributes:
        lost: Those of the ones left out that have fallen off the bus.
        recovery: By GPU UUID, the recovery that the driver asks for, in the numbers of NVML's
            nvmlDeviceGpuRecoveryAction_t; a card is missing where the driver does not tell.
    """

    gpus: tuple[Gpu, ...]
    left_out: tuple[LeftOut, ...] = ()
    lost: tuple[LostCard, ...] = ()
    recovery: Mapping[str, int] = field(default_factory=dict)
