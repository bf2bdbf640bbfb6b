"""Discovery of simulated cards, for demos and tests.

A profile file may change while it is in use, so that cards become sick and recover.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Lock
from typing import Final

import structlog

from tensorfusion_dra.core.devices.gpu import Inventory, TflopsSource
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.discovery import models, recording
from tensorfusion_dra.discovery.models import ModelTable, Rating
from tensorfusion_dra.discovery.recording import GpuAnswers, PciPlace, Recording, Refusal
from tensorfusion_dra.discovery.simulated import profile
from tensorfusion_dra.discovery.simulated.profile import Fault, GpuProfile, NodeProfile
from tensorfusion_dra.driver.ports.discovery import HungError

log = structlog.get_logger()

CUDA_DRIVER_VERSION: Final = 13000

_POLL_SECONDS: Final = 0.1
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.tensor-fusion.ai")
_NOT_SUPPORTED: Final = Refusal("NVML_ERROR_NOT_SUPPORTED")
_LOST: Final = Refusal("NVML_ERROR_GPU_IS_LOST")


class LiveProfile:
    """The profile of a shorthand or file; a file is read again whenever it has changed."""

    def __init__(self, text: str) -> None:
        """Read the profile for the first time.

        Raises:
            InputError: The text is neither a shorthand nor a file, or contains an unknown name.
        """
        self._text = text
        self._lock = Lock()  # guards all below
        self._read_version = self._version()
        self._profile = profile.from_text(text)

    def current(self) -> NodeProfile:
        """Return the current profile; the last valid one if the file has become unusable."""
        with self._lock:
            version = self._version()
            if version != self._read_version:
                self._read_version = version
                try:
                    self._profile = profile.from_text(self._text)
                except InputError as error:
                    log.warning("profile_unusable", error=str(error))
            return self._profile

    def _version(self) -> tuple[int, int, int] | None:
        try:
            status = Path(self._text).stat()
        except (OSError, ValueError):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


class SimulatedEvents:
    """Source of simulated events: the XIDs that appear in a profile while run() waits."""

    def __init__(self, xids: Callable[[], Mapping[str, int]]) -> None:
        """Take the XIDs that are in the profile now as known; they are never reported.

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
    """Discovery that makes up NVML's answers and evaluates them like those of real cards.

    Simulated cards have no minor number and therefore no device nodes.

    Attributes:
        events: Events of the simulated driver.
    """

    def __init__(
        self,
        live: Callable[[], NodeProfile],
        *,
        node_name: str,
        table: ModelTable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock of the simulation.

        Args:
            live: Returns the current profile.
            node_name: Seed of the UUIDs, so that a node has the same ones after a restart.
            table: Compute of the cards for which the profile has none.
            clock: Returns seconds from an arbitrary origin.
        """
        self._live = live
        self._node = live()
        self._node_name = node_name
        self._table = table
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

        places = {_bus_id(position): _place(position) for position in present}
        return recording.inventory(
            self._recording(present), rate=rate, place=places.__getitem__, simulated=True
        )

    def raw(self) -> dict[str, object]:
        """Return the made-up answers in the form of NvmlDiscovery.raw().

        Raises:
            RetryableError: The driver is not loaded yet according to the profile.
        """
        return self._recording(self._present()).as_json()

    def _present(self) -> tuple[int, ...]:
        """Return the positions in the profile of the cards that have appeared."""
        elapsed = self._clock() - self._start
        missing = self._node.driver_missing_for_seconds - elapsed
        if missing > 0:
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
        architecture = profile.architecture(card.compute_capability)
        memory: int | Refusal = card.vram_bytes
        if fault in (Fault.NO_MEMORY, Fault.LOST):
            memory = _LOST if fault is Fault.LOST else _NOT_SUPPORTED
        mig = int(fault is Fault.MIG)
        return GpuAnswers(
            index=index,
            handle="open",
            uuid=self._uuid(position, gpu),
            name=card.product_name,
            memory_bytes=memory,
            reserved_bytes=gpu.reserved_bytes,
            bus_id=_bus_id(position),
            minor=_NOT_SUPPORTED,
            brand=profile.brand(card.product_name),
            architecture=_NOT_SUPPORTED if architecture is None else architecture,
            compute_capability=card.compute_capability,
            mig_mode=(mig, mig),
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


def from_text(text: str, *, node_name: str, table: ModelTable | None = None) -> SimulatedDiscovery:
    """Return the discovery of a shorthand (``2xA100-SXM4-80GB,1xT4``) or of a YAML profile.

    Args:
        text: The shorthand, or the path of the file.
        node_name: Seed of the UUIDs.
        table: Compute by name; None uses the packaged one.

    Raises:
        InputError: The text is neither, or contains an unknown field or name.
    """
    live = LiveProfile(text)
    return SimulatedDiscovery(live.current, node_name=node_name, table=table or models.load())


# As in an eight-card server: two cards per root complex, four per NUMA node. Each PCI domain has
# sixteen cards.
def _bus_id(position: int) -> str:
    return f"{position // 16:04x}:{_bus(position):02x}:00.0"


def _place(position: int) -> PciPlace:
    root_complex = f"pci{position // 16:04x}:{_bus(position) & 0xF0:02x}"
    return PciPlace(pcie_root=root_complex, numa_node=position % 8 // 4)


def _bus(position: int) -> int:
    return 0x10 + position % 16 * 8
