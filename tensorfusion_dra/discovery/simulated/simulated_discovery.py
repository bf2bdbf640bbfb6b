"""Simulated cards, for demos and tests, from a shorthand (``8xA100-SXM4-80GB``) or a YAML profile.

A profile file may change while it is in use, so that cards become unhealthy and recover.
"""

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any, Final

import structlog

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.use import Container, GpuProcess
from tensorfusion_dra.core.devices.gpu import Inventory, TflopsSource
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import HungError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import is_number, is_whole_number
from tensorfusion_dra.discovery import models, recording, yaml_file
from tensorfusion_dra.discovery.host import file_version
from tensorfusion_dra.discovery.models import ModelTable, Rating
from tensorfusion_dra.discovery.recording import (
    GpuAnswers,
    PartitionAnswers,
    PciPlace,
    Recording,
    Refusal,
)
from tensorfusion_dra.discovery.yaml_file import shown

log = structlog.get_logger()

MAX_GPUS: Final = 256
DRIVER_VERSION: Final = "580.95.05"

_SHORTHAND: Final = re.compile(r"(?P<count>[0-9]{1,4})x(?P<name>.+)")
_PATH: Final = re.compile(r"/|\.(?:ya?ml|json)$")
_PARTITION: Final = re.compile(
    r"(?P<profile>(?P<slices>[1-7])g\.(?P<gib>[0-9]{1,3})gb)(\*(?P<count>[1-7]))?"
)
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSION: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,3}")

CUDA_DRIVER_VERSION: Final = 13000

_POLL_SECONDS: Final = 0.1
_MAX_USE: Final = 1000
_PROCESSES: Final = 2
"""Processes of each share that has a limit and a pod."""
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.tensor-fusion.ai")
_NOT_SUPPORTED: Final = Refusal("NVML_ERROR_NOT_SUPPORTED")
_LOST: Final = Refusal("NVML_ERROR_GPU_IS_LOST")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardModel:
    """NVML's data of a card model.

    Attributes:
        product_name: NVML's name.
        vram_bytes: As NVML reports it, usually a little less than the size in the name.
        compute_capability: (0, 0) if it is not known.
    """

    product_name: str
    vram_bytes: int
    compute_capability: tuple[int, int] = (0, 0)


CARDS: Final = tuple(
    CardModel(product_name=name, vram_bytes=memory_mib * MIB, compute_capability=capability)
    for name, memory_mib, capability in (
        ("Tesla P100-PCIE-16GB", 16384, (6, 0)),
        ("Tesla P40", 24576, (6, 1)),
        ("Tesla V100-SXM2-16GB", 16384, (7, 0)),
        ("Tesla V100-SXM2-32GB", 32768, (7, 0)),
        ("Tesla V100-PCIE-16GB", 16384, (7, 0)),
        ("Tesla V100S-PCIE-32GB", 32768, (7, 0)),
        ("Tesla T4", 15360, (7, 5)),
        ("NVIDIA A100-SXM4-40GB", 40960, (8, 0)),
        ("NVIDIA A100-SXM4-80GB", 81920, (8, 0)),
        ("NVIDIA A100-PCIE-40GB", 40960, (8, 0)),
        ("NVIDIA A100 80GB PCIe", 81920, (8, 0)),
        ("NVIDIA A800-SXM4-80GB", 81920, (8, 0)),
        ("NVIDIA A30", 24576, (8, 0)),
        ("NVIDIA A10", 23028, (8, 6)),
        ("NVIDIA A10G", 23028, (8, 6)),
        ("NVIDIA A40", 46068, (8, 6)),
        ("NVIDIA RTX A6000", 49140, (8, 6)),
        ("NVIDIA GeForce RTX 3080", 10240, (8, 6)),
        ("NVIDIA GeForce RTX 3090", 24576, (8, 6)),
        ("NVIDIA L4", 23034, (8, 9)),
        ("NVIDIA L40", 46068, (8, 9)),
        ("NVIDIA L40S", 46068, (8, 9)),
        ("NVIDIA RTX 6000 Ada Generation", 49140, (8, 9)),
        ("NVIDIA GeForce RTX 4090", 24564, (8, 9)),
        ("NVIDIA H100 80GB HBM3", 81559, (9, 0)),
        ("NVIDIA H100 PCIe", 81559, (9, 0)),
        ("NVIDIA H100 NVL", 95830, (9, 0)),
        ("NVIDIA H20", 97871, (9, 0)),
        ("NVIDIA H200", 143771, (9, 0)),
        ("NVIDIA GH200 480GB", 97871, (9, 0)),
        ("NVIDIA B200", 183359, (10, 0)),
        ("NVIDIA GeForce RTX 5090", 32607, (12, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, (12, 0)),
    )
)

_ARCHITECTURES: Final = {
    (6, 0): 4,
    (6, 1): 4,
    (7, 0): 5,
    (7, 5): 6,
    (8, 0): 7,
    (8, 6): 7,
    (8, 9): 8,
    (9, 0): 9,
    (10, 0): 10,
    (12, 0): 10,
}
"""nvmlDeviceArchitecture_t by compute capability, for all of these cards."""
_BRANDS: Final = {"GEFORCE": 5, "TESLA": 2, "RTX": 13}
"""nvmlBrandType_t by a word of the card's name; the first that is in the name counts."""


class Fault(StrEnum):
    """Fault of a simulated card."""

    MIG = "mig"
    NO_MEMORY = "no-memory"
    LOST = "lost"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """One simulated card.

    Attributes:
        reserved_bytes: Memory that the driver reserves for itself.
        milli_tflops: None takes the compute from the model table.
        uuid: None derives it from the node's name and the card's position.
        xid: XID that is reported when it appears in the profile; None for none.
        use: Memory and compute that each share of the card uses, in percent of its limit.
        recovery_action: Recovery action that the driver requires (nvmlDeviceGpuRecoveryAction_t).
        appears_after_seconds: Counted from the start of the simulation.
        mig: Profiles of its partitions in MIG mode: ``1g.10gb*2:3g.40gb``; "" without.
    """

    card: CardModel
    reserved_bytes: int = 0
    milli_tflops: int | None = None
    uuid: str | None = None
    fault: Fault | None = None
    xid: int | None = None
    use: int = 50
    recovery_action: int = 0
    appears_after_seconds: float = 0.0
    mig: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """The cards and the driver of one simulated node.

    Attributes:
        hangs: True if calls into the driver do not return.
    """

    gpus: tuple[GpuProfile, ...]
    driver_version: str = DRIVER_VERSION
    driver_missing_for_seconds: float = 0.0
    hangs: bool = False


def _are_partitions(value: object) -> bool:
    is_text = isinstance(value, str)
    return not value or (is_text and all(map(_PARTITION.fullmatch, str(value).split(":"))))


_Field = tuple[object, Callable[[Any], object], str]
"""A field's default, whether a value is valid, and what is expected for the error text."""
_SECONDS: Final[_Field] = (
    0.0,
    lambda value: is_number(value) and 0 <= value <= 86_400,
    "0 to 86400 seconds",
)
_AMOUNT: Final[_Field] = (None, lambda _: True, "a quantity, see _amount()")
NODE_FIELDS: Final[Mapping[str, _Field]] = {
    "gpus": (None, lambda value: isinstance(value, list), "a list of cards"),
    "driver_version": (
        DRIVER_VERSION,
        lambda value: isinstance(value, str) and _VERSION.fullmatch(value),
        "a text such as '580.95.05'",
    ),
    "driver_missing_for_seconds": _SECONDS,
    "hangs": (False, lambda value: isinstance(value, bool), "true or false"),
}
GPU_FIELDS: Final[Mapping[str, _Field]] = {
    "product": (
        None,
        lambda value: isinstance(value, str) and value.strip(),
        "a card's name",
    ),
    "count": (
        1,
        lambda value: is_whole_number(value) and 0 <= value <= MAX_GPUS,
        f"0 to {MAX_GPUS}",
    ),
    "vram": _AMOUNT,
    "reserved": _AMOUNT,
    "tflops": _AMOUNT,
    "uuid": (
        None,
        lambda value: value is None or (isinstance(value, str) and _UUID.fullmatch(value)),
        "GPU- and a lower-case UUID",
    ),
    "fault": (
        None,
        lambda value: value is None or value in tuple(Fault),
        f"one of {', '.join(Fault)}",
    ),
    "xid": (
        None,
        lambda value: value is None or (is_whole_number(value) and 0 <= value < 2**31),
        "a number from 0",
    ),
    "use": (
        50,
        lambda value: is_whole_number(value) and 0 <= value <= _MAX_USE,
        f"0 to {_MAX_USE} percent",
    ),
    "recovery_action": (
        0,
        lambda value: is_whole_number(value) and 0 <= value < 2**31,
        "a number from 0",
    ),
    "appears_after_seconds": _SECONDS,
    "mig": ("", _are_partitions, "partitions such as 1g.10gb*2:3g.40gb"),
}


def profile_from_text(text: str) -> NodeProfile:
    """Return the profile of ``<count>x<card>[@mig=<partitions>][,...]``, or of a YAML file.

    Raises:
        InputError: The text is neither, or contains an unknown field or name.
    """
    gpus: list[GpuProfile] = []
    fields: dict[str, Any] = {}
    where = text if _PATH.search(text) else "simulated GPUs"
    if _PATH.search(text):
        fields = _fields(yaml_file.content(Path(text)), NODE_FIELDS, text)
        for number, entry in enumerate(fields["gpus"], start=1):
            gpus.extend(_gpus(entry, f"{text}: gpus: entry {number}"))
    else:
        for part in map(str.strip, text.split(",")):
            match = _SHORTHAND.fullmatch(part)
            if match is None:
                raise InputError(
                    f"{where}: found {shown(part)}, expected one like 8xA100-SXM4-80GB or the path "
                    f"of a YAML file"
                )
            name, _, mig = match["name"].partition("@mig=")
            if not _are_partitions(mig):
                expected = GPU_FIELDS["mig"][2]
                raise InputError(f"{where}: mig: found {shown(mig)}, expected {expected}")
            gpus.extend([GpuProfile(card=_card(name, where), mig=mig)] * int(match["count"]))
    if len(gpus) > MAX_GPUS:
        raise InputError(f"{where}: found {len(gpus)} cards, expected at most {MAX_GPUS}")
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
    if len(set(uuids)) < len(uuids):
        raise InputError(
            f"{where}: uuid: found the same UUID on several cards, expected unique ones"
        )
    return NodeProfile(**{**fields, "gpus": tuple(gpus)})


def _gpus(entry: object, where: str) -> Sequence[GpuProfile]:
    fields = _fields(entry, GPU_FIELDS, where)
    product = fields["product"]
    vram = _amount(fields, "vram", where)
    if vram is None:
        card = _card(product, where)
    elif vram < MIB * NANO:
        raise InputError(f"{where}: vram: found {shown(fields['vram'])}, expected at least 1Mi")
    else:
        known = cards_named(product)
        plain = CardModel(product_name=" ".join(product.split()), vram_bytes=0)
        card = replace(known[0] if len(known) == 1 else plain, vram_bytes=vram // NANO)
    reserved = _amount(fields, "reserved", where) or 0
    if not 0 <= reserved <= (card.vram_bytes - MIB) * NANO:
        raise InputError(
            f"{where}: reserved: found {shown(fields['reserved'])}, expected 0 or more, and less "
            f"than the card's memory"
        )
    tflops = _amount(fields, "tflops", where)
    milli_tflops = None if tflops is None else tflops * 1000 // NANO
    if milli_tflops is not None and milli_tflops < 1:
        raise InputError(f"{where}: tflops: found {shown(fields['tflops'])}, expected more than 0")
    gpu = GpuProfile(
        card=card,
        reserved_bytes=reserved // NANO,
        milli_tflops=milli_tflops,
        uuid=fields["uuid"],
        fault=Fault(fields["fault"]) if fields["fault"] else None,
        xid=fields["xid"],
        use=fields["use"],
        recovery_action=fields["recovery_action"],
        appears_after_seconds=fields["appears_after_seconds"],
        mig=fields["mig"],
    )
    return [gpu] * fields["count"]


def _card(name: str, where: str) -> CardModel:
    found = cards_named(name)
    if len(found) == 1:
        return found[0]
    expected = ", ".join(
        card.product_name.removeprefix("NVIDIA ").removeprefix("Tesla ").replace(" ", "-")
        for card in found or CARDS
    )
    raise InputError(
        f"{where}: found {'several cards' if found else 'no card'} {shown(name)}, expected one of "
        f"{expected}, or a profile that gives its vram"
    )


def _amount(fields: Mapping[str, object], name: str, where: str) -> int | None:
    """Return a quantity in billionths; None if the field is missing."""
    value = fields.get(name)
    if value is None:
        return None
    # A YAML fraction is a float; str() returns the digits as written.
    try:
        return quantity.parse(str(value) if isinstance(value, float) else value).nano
    except QuantityError as error:
        raise InputError(f"{where}: {name}: {error}") from error


def _fields(value: object, known: Mapping[str, _Field], where: str) -> dict[str, Any]:
    """Return each known field's value, or its default if it is missing or null.

    Raises:
        InputError: The value is no mapping, or one of its fields is unknown or not valid.
    """
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {shown(value)}, expected fields {', '.join(known)}")
    if unknown := [field for field in value if field not in known]:
        raise InputError(f"{where}: found {shown(unknown[0])}, expected only {', '.join(known)}")
    given = {name: each for name, each in value.items() if each is not None}
    found = {name: default for name, (default, _, _) in known.items()} | given
    for name, (_, is_valid, expected) in known.items():
        if not is_valid(found[name]):
            raise InputError(f"{where}: {name}: found {shown(found[name])}, expected {expected}")
    return found


def cards_named(name: str) -> Sequence[CardModel]:
    """Return the card of that name, or all with that short name.

    The name is NVML's, with or without ``NVIDIA``, or the short one. Blanks, dashes and case do not
    matter, so that a shorthand may use ``H100-80GB-HBM3``.
    """
    wanted = _squeezed(name)
    exact = [card for card in CARDS if _squeezed(card.product_name) == wanted]
    short = [card for card in CARDS if models.short_model(card.product_name).lower() == wanted]
    return exact or short


def _squeezed(name: str) -> str:
    return re.sub(r"[\s_-]", "", models.name_key(name.replace("-", " ").replace("_", " ")))


class SimulatedEvents:
    """Source of simulated events: the XIDs that appear in a profile while run() waits."""

    def __init__(self, xids: Callable[[], Mapping[str, int]]) -> None:
        """Take the present XIDs as known, so that they are never reported.

        Args:
            xids: Returns the XIDs that are in the profile now, by GPU UUID.
        """
        self._xids = xids
        self._known = xids()
        self._watched: frozenset[str] = frozenset()  # replaced as a whole
        self._stop = Event()

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """Report events of these cards, and of no others, from now on."""
        self._watched = gpu_uuids

    def stop(self) -> None:
        """End run()."""
        self._stop.set()

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """Wait for new XIDs and pass each one on, until stopped."""
        while not self._stop.wait(_POLL_SECONDS):
            now = self._xids()
            for gpu_uuid in sorted(self._watched & now.keys()):
                if now[gpu_uuid] != self._known.get(gpu_uuid):
                    on_event(CardEvent(gpu_uuid=gpu_uuid, kind=EventKind.XID, code=now[gpu_uuid]))
            self._known = now


class SimulatedDiscovery:
    """Discovery that simulates NVML's answers and evaluates them like those of real cards.

    Simulated cards have no minor number and therefore no device nodes.

    Attributes:
        events: Events of the simulated driver.
    """

    def __init__(
        self,
        text: str,
        *,
        node_name: str,
        table: ModelTable | None = None,
        prepared: Callable[[], Sequence[PreparedClaim]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock of the simulation.

        Args:
            text: A shorthand (``2xA100-SXM4-80GB,1xT4``), or the path of a YAML profile, which is
                read again whenever it has changed.
            node_name: Seed of the UUIDs, so that a node has the same ones after a restart.
            table: Compute of the cards for which the profile has none; None for the packaged one.
            prepared: Returns the prepared claims, whose shares the simulated processes use.
            clock: Returns seconds from an arbitrary origin.

        Raises:
            InputError: The text is neither, or contains an unknown field or name.
        """
        self._text = text
        self._read_version = file_version(Path(self._text))
        self._profile = profile_from_text(text)
        self._prepared = prepared
        self._node = self._profile
        self._node_name = node_name
        self._table = table or models.load()
        self._clock = clock
        self._start = clock()
        self.events: Final = SimulatedEvents(self._xids)

    def read(self) -> Inventory:
        """Return every card of the node as it is now.

        Raises:
            HungError: The driver hangs according to the profile.
            RetryableError: The driver is not loaded yet according to the profile.
        """
        self._node = self._live()
        if self._node.hangs:
            raise HungError("simulated GPUs: the driver hangs", "simulated call")
        present = self._present()

        def rate(answers: GpuAnswers) -> Rating | None:
            gpu = self._node.gpus[present[answers.index]]
            if gpu.milli_tflops is not None:
                return Rating(milli_tflops=gpu.milli_tflops, source=TflopsSource.PROFILE)
            return self._table.lookup(gpu.card.product_name)

        places = {
            _bus_id(position): PciPlace(
                pcie_root=f"pci{position // 16:04x}:{_bus(position) & 0xF0:02x}",
                numa_node=position % 8 // 4,
            )
            for position in present
        }
        return recording.inventory(
            self._recording(present), rate=rate, place=places.__getitem__, simulated=True
        )

    def raw(self) -> Recording:
        """Return the simulated answers in the form of NvmlDiscovery.raw().

        Raises:
            RetryableError: The driver is not loaded yet according to the profile.
        """
        return self._recording(self._present())

    def processes(self) -> Mapping[str, Sequence[GpuProcess]]:
        """Return two processes for each share that has a limit and a pod, by GPU UUID."""
        live = self._live()
        gpus = {
            uuid: gpu
            for position, gpu in enumerate(live.gpus)
            for card in [self._uuid(position, gpu)]
            for uuid in (card, *(str(each.uuid) for each in _partitions(gpu.mig, card)))
        }
        found: dict[str, list[GpuProcess]] = {uuid: [] for uuid in gpus}
        for claim in self._prepared():
            for share in claim.shares:
                if share.limit and claim.pods and share.gpu_uuid in gpus:
                    owner = f"{claim.ref.uid}/{share.request}"
                    container = Container(
                        pod_uid=claim.pods[0].uid, id=hashlib.sha256(owner.encode()).hexdigest()
                    )
                    percent = gpus[share.gpu_uuid].use // _PROCESSES
                    process = GpuProcess(
                        pid=len(found[share.gpu_uuid]) + 1,
                        vram_bytes=share.limit.vram_bytes * percent // 100,
                        sm_percent=share.limit.sm_percent * percent // 100,
                        container=container,
                        name="simulated",
                    )
                    found[share.gpu_uuid] += [
                        replace(process, pid=process.pid + number) for number in range(_PROCESSES)
                    ]
        return found

    def _live(self) -> NodeProfile:
        """Return the current profile; the last valid one if the file has become unusable."""
        version = file_version(Path(self._text))
        if version != self._read_version:
            self._read_version = version
            try:
                self._profile = profile_from_text(self._text)
            except InputError as error:
                log.warning("profile_unusable", error=str(error))
        return self._profile

    def _present(self) -> tuple[int, ...]:
        """Return the positions in the profile of the cards that have appeared."""
        elapsed = self._clock() - self._start
        if elapsed < self._node.driver_missing_for_seconds:
            raise RetryableError("simulated GPUs: found no driver, waiting for it")
        return tuple(
            position
            for position, gpu in enumerate(self._node.gpus)
            if gpu.appears_after_seconds <= elapsed and gpu.fault is not Fault.ABSENT
        )

    def _recording(self, present: tuple[int, ...]) -> Recording:
        return Recording(
            library="simulated",
            driver_version=self._node.driver_version,
            cuda_driver_version=CUDA_DRIVER_VERSION,
            gpus=tuple(self._answers(position, index) for index, position in enumerate(present)),
        )

    def _answers(self, position: int, index: int) -> GpuAnswers:
        gpu = self._node.gpus[position]
        card, fault = gpu.card, gpu.fault
        words = card.product_name.upper().split()
        brands = (brand for word, brand in _BRANDS.items() if word in words)
        memory: int | Refusal = card.vram_bytes
        if fault in (Fault.NO_MEMORY, Fault.LOST):
            memory = _LOST if fault is Fault.LOST else _NOT_SUPPORTED
        return GpuAnswers(
            index=index,
            handle="open",
            uuid=self._uuid(position, gpu),
            name=card.product_name,
            memory_bytes=memory,
            reserved_bytes=gpu.reserved_bytes,
            bus_id=_bus_id(position),
            minor=_NOT_SUPPORTED,
            brand=next(brands, 14),
            architecture=_ARCHITECTURES.get(card.compute_capability, _NOT_SUPPORTED),
            compute_capability=card.compute_capability,
            mig_mode=(int(fault is Fault.MIG or gpu.mig != ""),) * 2,
            partitions=_partitions(gpu.mig, self._uuid(position, gpu)),
            cores=_NOT_SUPPORTED,
            max_sm_clock_mhz=_NOT_SUPPORTED,
            recovery_action=gpu.recovery_action,
        )

    def _uuid(self, position: int, gpu: GpuProfile) -> str:
        return gpu.uuid or f"GPU-{uuid.uuid5(_NAMESPACE, f'{self._node_name}/{position}')}"

    def _xids(self) -> Mapping[str, int]:
        """Return the XIDs in the current profile, by the UUIDs of their cards."""
        return {
            self._uuid(position, gpu): gpu.xid
            for position, gpu in enumerate(self._live().gpus)
            if gpu.xid is not None
        }


def _partitions(mig: str, gpu_uuid: str) -> tuple[PartitionAnswers, ...]:
    """Return the partitions of a card; each has half a GiB less than its name says."""
    every = [
        match
        for text in mig.split(":")
        if (match := _PARTITION.fullmatch(text))
        for _ in range(int(match["count"] or 1))
    ]
    return tuple(
        PartitionAnswers(
            uuid=f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu_uuid}/{number}')}",
            profile=match["profile"],
            amounts=(14 * int(match["slices"]), int(match["gib"]) * 1024 - 512),
            largest=7 * 14,
            gpu_instance=number,
            capability_minors=(),
        )
        for number, match in enumerate(every)
    )


# As in an eight-card server: two cards per root complex, four per NUMA node. Each PCI domain has
# sixteen cards.
def _bus_id(position: int) -> str:
    return f"{position // 16:04x}:{_bus(position):02x}:00.0"


def _bus(position: int) -> int:
    return 0x10 + position % 16 * 8
