"""NVML's answers, query by query, and the inventory derived from them.

Real and simulated discovery both produce a recording. inventory() applies the same rules to it, so
that a simulated card is published or left out exactly like a real one.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

from tensorfusion_dra.core.devices.gpu import (
    Gpu,
    Inventory,
    LeftOut,
    LostCard,
    device_name,
    is_partition,
)
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.quantity import MIB
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.models import Rating

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Error that NVML returned instead of an answer, such as ``NVML_ERROR_NOT_SUPPORTED``."""

    error: str

    def __str__(self) -> str:
        return self.error


LOST: Final = frozenset({"NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED"})

# nvmlBrandType_t and nvmlDeviceArchitecture_t of nvml.h, in the spelling of NVIDIA's DRA driver.
BRANDS: Final = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
    18: "NvidiaVGameDev",
}
ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

_CORES: Final = {(8, 0): 64, (9, 0): 128, (10, 0): 128, (10, 3): 128, (12, 0): 128}
"""CUDA cores of one multiprocessor, by compute capability, of cards that can be in MIG mode."""
_NO_PARTITIONS: Final = (
    "MIG mode is on without instances, expected some (nvidia-smi mig -cgi ... -C), or a privileged "
    "process, to which alone NVML shows all of them (nvidia.privileged of the chart), or MIG mode "
    "off (nvidia-smi -mig 0)"
)

_BUS_ID = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})\.(?P<function>[0-7])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswers:
    """NVML's raw answers about one partition of a card in MIG mode.

    Attributes:
        uuid: ``MIG-8f3a...``; drivers before 470 have another form.
        profile: The end of its name, such as ``1g.10gb``.
        amounts: Multiprocessors, and MiB of memory.
        largest: Multiprocessors of the largest GPU instance that the card can have; 0 if unknown.
        gpu_instance: Number of its GPU instance.
        capability_minors: Minor numbers for its GPU instance and compute instance; fewer if the
            driver lists none.
    """

    uuid: str | Refusal
    profile: str | Refusal
    amounts: tuple[int, int] | Refusal
    largest: int
    gpu_instance: int | Refusal
    capability_minors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAnswers:
    """NVML's raw answers about one card.

    Attributes:
        handle: A refusal if the card could not be opened; then all other fields are refusals too.
        memory_bytes: Total, from nvmlDeviceGetMemoryInfo_v2 or, if it is missing, from version 1.
        reserved_bytes: Part of the total that driver and firmware reserve; from version 2 only.
        bus_id: ``00000000:3B:00.0``.
        brand: nvmlBrandType_t.
        architecture: nvmlDeviceArchitecture_t.
        mig_mode: Current and pending mode; 1 is on.
        cores: Number of CUDA cores.
        recovery_action: nvmlDeviceGpuRecoveryAction_t; older drivers do not report it.
        partitions: Of a card in MIG mode.
    """

    index: int
    handle: str | Refusal
    uuid: str | Refusal
    name: str | Refusal
    memory_bytes: int | Refusal
    reserved_bytes: int | Refusal
    bus_id: str | Refusal
    minor: int | Refusal
    brand: int | Refusal
    architecture: int | Refusal
    compute_capability: tuple[int, int] | Refusal
    mig_mode: tuple[int, int] | Refusal
    cores: int | Refusal
    max_sm_clock_mhz: int | Refusal
    recovery_action: int | Refusal
    partitions: tuple[PartitionAnswers, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One reading of all cards.

    Attributes:
        library: Path of the library that answered.
        cuda_driver_version: 12040 for CUDA 12.4.
    """

    library: str
    driver_version: str | Refusal
    cuda_driver_version: int | Refusal
    gpus: tuple[GpuAnswers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPlace:
    """Place of a PCI device in the machine.

    Attributes:
        pcie_root: ``pcidddd:bb`` of the root complex; None if sysfs does not have it.
        numa_node: None if sysfs does not have it, or if the machine has only one.
    """

    pcie_root: str | None = None
    numa_node: int | None = None


def inventory(
    recording: Recording,
    *,
    rate: Callable[[GpuAnswers], Rating | None],
    place: Callable[[str], PciPlace],
    simulated: bool = False,
) -> Inventory:
    """Return the cards that can be published, and the reason for each card that cannot.

    In place of a card in MIG mode, its partitions are published.

    Args:
        rate: Returns the compute of a card; None if it is unknown.
        place: Returns the place of the card with this PCI bus ID (``dddd:bb:ss.f``).
        simulated: True if the recording is of simulated cards.
    """
    gpus: list[Gpu] = []
    left_out: list[LeftOut] = []
    lost: list[LostCard] = []
    for answers in recording.gpus:
        subject = known(answers.uuid) or f"GPU {answers.index}"
        lost_because = _lost(answers)
        reason = lost_because or _unusable(answers)
        rating = rate(answers) if reason is None else None
        if rating is None:
            unrated = (
                f"tflops: found {known(answers.name)!r} in no model table and neither cores nor "
                f"clock to estimate from, expected a row for it"
            )
            left_out.append(LeftOut(subject=subject, reason=reason or unrated))
            if lost_because is not None:
                lost.append(
                    LostCard(
                        subject=subject,
                        uuid=known(answers.uuid),
                        pci_bus_id=bus_id_in_sysfs(known(answers.bus_id) or ""),
                        text=lost_because,
                    )
                )
        else:
            card = _gpu(answers, recording, rating, place, simulated=simulated)
            of_card, refused = _partitions(card, answers)
            gpus += of_card if answers.partitions else [card]
            left_out += refused
    actions = {
        known(answers.uuid) or "": answers.recovery_action
        for answers in recording.gpus
        if isinstance(answers.recovery_action, int)
    }
    of_gpus = {gpu.uuid: actions[gpu.card_uuid] for gpu in gpus if gpu.card_uuid in actions}
    return Inventory(
        gpus=tuple(gpus), left_out=tuple(left_out), lost=tuple(lost), recovery=actions | of_gpus
    )


def _unusable(answers: GpuAnswers) -> str | None:
    if isinstance(answers.handle, Refusal):
        return f"handle: found {answers.handle.error}, expected access to the card"
    # It becomes the name of a device.
    if isinstance(answers.uuid, Refusal) or any(name_rules.label("", device_name(answers.uuid))):
        return f"uuid: found {answers.uuid}, expected GPU-..."
    if not isinstance(answers.mig_mode, Refusal) and answers.mig_mode[0] == 1:
        # Its memory is that of its partitions; NVML tells only privileged processes the sum.
        return None if answers.partitions else _NO_PARTITIONS
    memory = answers.memory_bytes
    if isinstance(memory, Refusal) or not memory:
        found = memory.error if isinstance(memory, Refusal) else memory
        return f"memory: found {found}, expected a size in bytes"
    # Kubernetes' rules for ranges need room for the smallest share and one step more.
    if memory - (known(answers.reserved_bytes) or 0) < 2 * MIB:
        return (
            f"memory: found {memory} bytes of which {answers.reserved_bytes} are reserved, "
            f"expected at least 2 MiB to hand out"
        )
    return None


def _partitions(card: Gpu, answers: GpuAnswers) -> tuple[list[Gpu], list[LeftOut]]:
    """Return the partitions of a card that can be published, and why others cannot."""
    cores, of_one = known(answers.cores), _CORES.get(card.compute_capability)
    instances = Counter(each.gpu_instance for each in answers.partitions)
    found, left_out = [], []
    for each in answers.partitions:
        part, memory_mib = known(each.amounts) or (0, 0)
        whole = cores // of_one if cores and of_one else each.largest
        partition = replace(
            card,
            uuid=known(each.uuid) or "",
            milli_tflops=card.milli_tflops * part // max(whole, part, 1),
            vram_bytes=memory_mib * MIB,
            reserved_bytes=0,
            partition=known(each.profile) or "unknown",
            parent_uuid=card.uuid,
            gpu_instance=known(each.gpu_instance),
            capability_minors=each.capability_minors,
        )
        name, beside, reason = device_name(partition.uuid), instances[each.gpu_instance], ""
        if not is_partition(name) or any(name_rules.label("", name)):
            reason = f"uuid: found {each.uuid}, expected MIG-..."
        elif beside > 1:
            reason = (
                f"found {beside} compute instances in GPU instance {each.gpu_instance}, expected "
                "one: they share its memory without a limit"
            )
        elif not (partition.milli_tflops and memory_mib):
            reason = f"attributes: found {each.amounts}, expected multiprocessors and memory"
        if reason:
            left_out.append(LeftOut(subject=card.uuid, reason=f"partition {each.uuid}: {reason}"))
        else:
            found.append(partition)
    return found, left_out


def _lost(answers: GpuAnswers) -> str | None:
    for field in fields(answers):
        answer = getattr(answers, field.name)
        # A lost card still answers some queries from NVML's cache; one such refusal is enough.
        if isinstance(answer, Refusal) and answer.error in LOST:
            return f"{field.name}: found {answer.error}, expected a working card"
    return None


def _gpu(
    answers: GpuAnswers,
    recording: Recording,
    rating: Rating,
    place: Callable[[str], PciPlace],
    *,
    simulated: bool,
) -> Gpu:
    bus_id = bus_id_in_sysfs(known(answers.bus_id) or "")
    where = PciPlace() if bus_id is None else place(bus_id)
    name = known(answers.name) or ""
    cuda = known(recording.cuda_driver_version) or 0
    return Gpu(
        uuid=known(answers.uuid) or "",
        index=answers.index,
        minor=known(answers.minor),
        product_name=name,
        model=models.short_model(name),
        milli_tflops=rating.milli_tflops,
        tflops_source=rating.source,
        vram_bytes=known(answers.memory_bytes) or 0,
        reserved_bytes=known(answers.reserved_bytes) or 0,
        brand=BRANDS.get(known(answers.brand) or 0, ""),
        architecture=ARCHITECTURES.get(known(answers.architecture) or 0, ""),
        compute_capability=known(answers.compute_capability) or (0, 0),
        driver_version=known(recording.driver_version) or "",
        cuda_driver_version=(cuda // 1000, cuda % 1000 // 10),
        pci_bus_id=bus_id,
        pcie_root=where.pcie_root,
        numa_node=where.numa_node,
        simulated=simulated,
    )


def bus_id_in_sysfs(bus_id: str) -> str | None:
    """Return NVML's bus ID in Linux' form; NVML pads the domain to eight digits, in upper case."""
    match = _BUS_ID.fullmatch(bus_id)
    if match is None:
        return None
    domain = int(match["domain"], 16)
    return f"{domain:04x}:{match['bus']}:{match['slot']}.{match['function']}".lower()


def known(answer: T | Refusal) -> T | None:
    """Return the answer; None if NVML refused one."""
    return None if isinstance(answer, Refusal) else answer
