"""Discovery of the node's cards through NVML."""

import ctypes
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Condition
from typing import Any, Final, TypeVar

import pynvml
import structlog

from tensorfusion_dra.core.claims.use import GpuProcess
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import FatalError, HungError, RetryableError
from tensorfusion_dra.discovery import models, recording
from tensorfusion_dra.discovery.host import LIBRARY_FOLDERS, file_version
from tensorfusion_dra.discovery.models import ModelTable, Rating
from tensorfusion_dra.discovery.nvml import mig
from tensorfusion_dra.discovery.nvml.processes import ProcessReader
from tensorfusion_dra.discovery.recording import GpuAnswers, PciPlace, Recording, Refusal
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle
from tensorfusion_dra.runtime.single_call_thread import OverdueError, SingleCallThread

log = structlog.get_logger()

T = TypeVar("T")

SONAME: Final = "libnvidia-ml.so.1"
_ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")

WAIT_SECONDS: Final = 30.0
"""Longest reading. Opening a card takes seconds while the driver initialises it."""

_ERROR_NAMES: Final[dict[int, str]] = {
    value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")
}
_DRIVER_NOT_LOADED: Final = "NVML_ERROR_DRIVER_NOT_LOADED"
_VERSION_MISMATCH: Final = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
_UNINITIALIZED: Final = "NVML_ERROR_UNINITIALIZED"

# Errors that concern NVML as a whole, even as the answer to a query about one card.
UNAVAILABLE: Final = frozenset({_DRIVER_NOT_LOADED, _VERSION_MISMATCH, _UNINITIALIZED})

_WAITED_FOR: Final = {
    _DRIVER_NOT_LOADED: "the NVIDIA kernel driver to be loaded",
    _VERSION_MISMATCH: "library and kernel driver of the same version",
    "NVML_ERROR_NO_PERMISSION": "access to /dev/nvidiactl",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "a newer NVIDIA driver",
}


_KINDS: Final[Mapping[int, EventKind]] = {
    pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
    pynvml.nvmlEventTypeDoubleBitEccError: EventKind.UNCORRECTABLE_ECC,
    pynvml.nvmlEventTypeDramRetirementFailure: EventKind.RETIREMENT_FAILED,
    pynvml.nvmlEventTypeFatalPoisonError: EventKind.FATAL_POISON,
    pynvml.nvmlEventTypeGpuUnavailableError: EventKind.UNAVAILABLE,
    pynvml.nvmlEventTypeGpuRecoveryAction: EventKind.RECOVERY_ACTION,
    pynvml.nvmlEventMigConfigChange: EventKind.PARTITIONS_CHANGED,
}
_EVERY_KIND: Final = sum(_KINDS)
_WHOLE_CARD: Final = 2**32 - 1
"""The GPU instance of an event that concerns no single one."""
_WAIT_MS: Final = 250
"""Longest delay until run() notices that the watched cards changed."""
_ONLY_POLLED: Final = "; GPU health is only polled"
_CLOSE_SECONDS: Final = 3.0

_Cards = Mapping[int | None, str]
"""UUIDs by the address in an event."""

_NO_EVENTS: Final = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)


class NvmlDiscovery:
    """Discovery through the NVIDIA driver of this machine.

    NVML is initialised and shut down at every reading, so that a reading finds new cards and a
    replaced driver. Between readings, device files are open only for events.

    A process can have only one, because pynvml caches the functions of the first library.

    Attributes:
        events: Events of the same driver.
    """

    def __init__(
        self,
        models: ModelTable,
        *,
        library: Path | None = None,
        driver_root: Path = Path("/"),
        sysfs_root: Path = Path("/sys"),
        proc_root: Path = Path("/proc"),
        wait_seconds: float = WAIT_SECONDS,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        models: Compute by name; the compute of other cards is estimated.
        library: Path of libnvidia-ml.so.1; None searches for it.
        driver_root: Searched before the loader's path, for example /run/nvidia/driver.
        sysfs_root: The node's /sys.
        proc_root: The node's /proc.
        wait_seconds: Longest time for a reading.
        check: Called before NVML is opened; raises RetryableError if it has to stay closed.
        """
        self._check = check
        self._models = models
        self._sysfs = sysfs_root
        self._wait_seconds = wait_seconds
        self._reader = _Reader(library, driver_root, proc_root)
        self._thread = SingleCallThread("nvml")
        self.events: Final = NvmlEvents()
        self._last: Inventory | None = None
        self._bound: frozenset[str] = frozenset()

    def read(self) -> Inventory:
        """Return every card of the node as it is now.

        Raises:
            HungError: A call has been running for too long.
            RetryableError: NVML is not available yet (no library, driver not loaded); the text
                names what is missing.
            FatalError: The library was replaced; only a new process can load the new one.
        """
        driver = self._sysfs / "bus" / "pci" / "drivers" / "nvidia"
        bound = frozenset(path.name for path in driver.glob("*:*"))  # the devices bound to it
        last, self._last = self._last, None
        is_open_for_events = (
            last is not None
            and bound == self._bound
            and not last.lost
            and {gpu.card_uuid for gpu in last.gpus} == self.events.wanted
        )
        try:
            # To find other cards, NVML has to be initialised again, for which nothing may have it
            # open.
            with nullcontext() if is_open_for_events else self.events.paused():
                made = self.raw()
        except (RetryableError, FatalError):
            self.events.update_indices({})
            raise
        found = recording.inventory(
            made, rate=self._rate, place=lambda bus: pci_place(self._sysfs, bus)
        )
        self._last, self._bound = found, bound
        self.events.update_indices({gpu.card_uuid: gpu.index for gpu in found.gpus})
        return found

    def processes(self) -> Mapping[str, Sequence[GpuProcess]]:
        """Return the processes that use the cards, by GPU UUID.

        Raises:
            RetryableError: As in read(); or /proc is not the host's.
            FatalError: As in read().
        """
        return self._run(self._reader.processes)

    def raw(self) -> Recording:
        """Return NVML's answer to every query.

        Raises:
            RetryableError: As in read().
            FatalError: As in read().
        """
        return self._run(self._reader.record)

    def _run(self, function: Callable[[], T]) -> T:
        self._check()
        try:
            return self._thread.run(function, wait_seconds=self._wait_seconds)
        except OverdueError as error:
            query, began = self._reader.pending
            seconds = time.monotonic() - began
            raise HungError(
                f"NVML: {query}: found no answer after {seconds:.0f} s, in a reading that began "
                f"{error.age_seconds:.0f} s ago, expected one within {self._wait_seconds:g} s",
                query,
            ) from error

    def _rate(self, answers: GpuAnswers) -> Rating | None:
        name = "" if isinstance(answers.name, Refusal) else answers.name
        return self._models.lookup(name) or models.estimated(
            name,
            cores=recording.known(answers.cores),
            max_sm_clock_mhz=recording.known(answers.max_sm_clock_mhz),
            compute_capability=recording.known(answers.compute_capability),
        )


class _Reader:
    """All calls of NVML, for use in one thread.

    Attributes:
        pending: The latest call and the time of its start; other threads may read it.
    """

    def __init__(self, library: Path | None, driver_root: Path, proc: Path) -> None:
        self._find = (library, driver_root)
        self._library = ""  # its path, once it is loaded
        self._version: tuple[int, ...] = ()
        self._proc = proc
        self._processes = ProcessReader(proc)
        self.pending = ("a call", time.monotonic())

    def record(self) -> Recording:
        """Take one reading, from initialisation to shutdown of NVML.

        Raises:
            RetryableError: NVML cannot be loaded or initialised, or became unavailable.
            FatalError: The library was replaced after this process loaded it.
        """
        with self._initialised() as count:
            return Recording(
                library=self._library,
                driver_version=self._query("driver version", pynvml.nvmlSystemGetDriverVersion),
                cuda_driver_version=self._query(
                    "CUDA driver version", pynvml.nvmlSystemGetCudaDriverVersion_v2
                ),
                gpus=tuple(self._gpu(index) for index in range(count)),
            )

    def processes(self) -> Mapping[str, Sequence[GpuProcess]]:
        """Return the processes that use the cards, by GPU UUID.

        Raises:
            RetryableError: As in record(); or /proc is not the host's.
        """
        self._processes.check()
        with self._initialised() as count:
            handles = {
                self._query(f"uuid in GPU {index}", pynvml.nvmlDeviceGetUUID, handle): handle
                for index in range(count)
                for handle in self._devices(self._handle(index))
            }
            known = {uuid: handle for uuid, handle in handles.items() if isinstance(uuid, str)}
            return self._processes.read(known, self._query)

    @contextmanager
    def _initialised(self) -> Iterator[int]:
        """Load and initialise NVML for the block; yield the number of cards."""
        if not self._library:
            self._library = load(*self._find)
            self._version = file_version(Path(self._library))
        # With this flag, a node whose cards are all lost counts zero cards instead of failing.
        self._require("nvmlInitWithFlags", pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        try:
            yield self._require("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)
        finally:
            # Errors are harmless: NVML is already shut down, or stays initialised once too often.
            self.pending = ("nvmlShutdown", time.monotonic())
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _handle(self, index: int) -> Any:
        return self._query(f"handle of GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index)

    def _devices(self, card: Any) -> Iterator[Any]:
        """Yield the handles that NVML can ask for the processes of a card."""
        if isinstance(card, Refusal):
            return
        if mig.is_on(self._query("MIG mode", _mig_mode, card)):
            yield from mig.handles(card, self._query)
        else:
            yield card

    def _gpu(self, index: int) -> GpuAnswers:
        handle = self._handle(index)

        def get(field: str, function: Callable[[Any], Any]) -> Any:
            if isinstance(handle, Refusal):
                return handle
            return self._query(f"{field} of GPU {index}", function, handle)

        memory = get("memory", _memory_bytes)
        total, reserved = (memory, memory) if isinstance(memory, Refusal) else memory
        mode = get("MIG mode", _mig_mode)
        return GpuAnswers(
            index=index,
            handle=handle if isinstance(handle, Refusal) else "open",
            uuid=get("uuid", pynvml.nvmlDeviceGetUUID),
            name=get("name", pynvml.nvmlDeviceGetName),
            memory_bytes=total,
            reserved_bytes=reserved,
            bus_id=get("PCI bus id", lambda card: pynvml.nvmlDeviceGetPciInfo(card).busId),
            minor=get("minor number", pynvml.nvmlDeviceGetMinorNumber),
            brand=get("brand", pynvml.nvmlDeviceGetBrand),
            architecture=get("architecture", pynvml.nvmlDeviceGetArchitecture),
            compute_capability=get("compute capability", pynvml.nvmlDeviceGetCudaComputeCapability),
            mig_mode=mode,
            partitions=mig.partitions(handle, self._query, self._proc) if mig.is_on(mode) else (),
            cores=get("cores", pynvml.nvmlDeviceGetNumGpuCores),
            max_sm_clock_mhz=get(
                "clock", lambda card: pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM)
            ),
            recovery_action=get("recovery action", _recovery_action),
        )

    def _query(self, query: str, function: Callable[..., Any], *args: object) -> Any:
        """Return the answer or NVML's refusal; raise only if NVML as a whole is unavailable."""
        self.pending = (query, time.monotonic())
        try:
            return function(*args)
        except pynvml.NVMLError as error:
            refusal = Refusal(error_name(error))
            if refusal.error in UNAVAILABLE:
                raise self._unavailable(query, refusal) from error
            return refusal
        except UnicodeDecodeError:
            return Refusal("not UTF-8")

    def _require(self, query: str, function: Callable[..., Any], *args: object) -> Any:
        answer = self._query(query, function, *args)
        if isinstance(answer, Refusal):
            raise self._unavailable(query, answer)
        return answer

    def _unavailable(self, query: str, refusal: Refusal) -> RetryableError | FatalError:
        found = f"NVML: {query}: {self._library} answered {refusal.error}"
        is_replaced = bool(self._version) and self._version != file_version(Path(self._library))
        # The loader never loads the new file into a process that has the old one.
        if refusal.error == _VERSION_MISMATCH and is_replaced:
            return FatalError(f"{found}; the library was replaced, only a new process can load it")
        return RetryableError(
            f"{found}, waiting for {_WAITED_FOR.get(refusal.error, 'NVML to answer')}"
        )


def error_name(error: pynvml.NVMLError) -> str:
    """Return the name of an error as nvml.h has it."""
    return _ERROR_NAMES.get(error.value, f"NVML_ERROR_{error.value}")


def load(library: Path | None, driver_root: Path) -> str:
    """Load NVML, make pynvml call it, and return its path.

    Args:
        library: Its path; None searches for it.
        driver_root: Searched before the loader's path.

    Raises:
        RetryableError: It cannot be loaded; the text has the reasons.
    """
    below_root = (driver_root / folder / SONAME for folder in LIBRARY_FOLDERS)
    names = (str(file) for file in below_root if file.is_file())
    reasons: list[str] = []
    for name in (*names, SONAME) if library is None else (str(library),):
        try:
            calls = ctypes.CDLL(name)
        except OSError as error:
            reasons.append(" ".join(str(error).split()))
            continue
        if hasattr(calls, "nvmlInitWithFlags"):
            # Otherwise pynvml would load the library from the loader's path.
            pynvml.nvmlLib = calls
            return name
        reasons.append(f"{name}: found no function nvmlInitWithFlags, expected NVML")
    raise RetryableError(f"NVML: {'; '.join(reasons)}; waiting for the NVIDIA driver's {SONAME}")


def _memory_bytes(card: Any) -> tuple[int, int | Refusal]:
    """Return total and reserved memory; drivers before 510 do not report the reserved part."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        return int(pynvml.nvmlDeviceGetMemoryInfo(card).total), Refusal(error_name(error))
    return int(memory.total), int(memory.reserved)


def _mig_mode(card: Any) -> tuple[int, ...]:
    return tuple(pynvml.nvmlDeviceGetMigMode(card))


def _recovery_action(card: Any) -> int:
    (answer,) = pynvml.nvmlDeviceGetFieldValues(card, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def pci_place(sysfs: Path, bus_id: str) -> PciPlace:
    """Return the place of the device ``dddd:bb:ss.f``; a field that cannot be read is None.

    The root is found as in Kubernetes' deviceattribute package: the first root complex in the path
    of the device to which /sys/bus/pci/devices links.
    """
    link = sysfs / "bus" / "pci" / "devices" / bus_id
    pcie_root, numa_node = None, -1
    with suppress(OSError, RuntimeError):  # RuntimeError: a loop of links
        parts = link.resolve(strict=True).parts
        pcie_root = next((part for part in parts if _ROOT_COMPLEX.fullmatch(part)), None)
    with suppress(OSError, ValueError):
        numa_node = int((link / "numa_node").read_text(encoding="ascii"))
    return PciPlace(pcie_root=pcie_root, numa_node=numa_node if numa_node >= 0 else None)


class NvmlEvents:
    """Source of card events. It relies on readings to load NVML; see update_indices().

    Attributes:
        wanted: The cards whose events are waited for.
    """

    def __init__(self) -> None:
        self._changed = Condition()  # guards all below
        self.wanted: frozenset[str] = frozenset()
        self._eventless: frozenset[str] = frozenset()  # a set of cards of which none has events
        self._indices: Mapping[str, int] = {}
        self._is_paused = False
        self._is_open = False
        self._stopping = False
        self._throttle = LogThrottle(quiet_seconds=math.inf)  # used by run()'s thread only

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """Wait for events of these cards, and of no others, from now on."""
        self._set(wanted=gpu_uuids)

    def stop(self) -> None:
        """End run()."""
        self._set(_stopping=True)

    def update_indices(self, indices: Mapping[str, int]) -> None:
        """Set NVML's indices by UUID from the last reading; empty if it failed."""
        self._set(_indices=indices)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the event set closed during the block; wait at most a few seconds for its end."""
        with self._changed:
            self._is_paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_open, timeout=_CLOSE_SECONDS)
        try:
            yield
        finally:
            self._set(_is_paused=False)

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """Wait for events and pass each one on, until stopped."""
        backoff = Backoff(first_seconds=1, longest_seconds=60)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._may_open())
                if self._stopping:
                    return
                self._is_open = True
                wanted = self.wanted
            seconds = 0.0
            try:
                self._session(wanted, on_event)
            except _NO_EVENTS as error:
                self._throttle.warn("card_events_unavailable", f"{error}{_ONLY_POLLED}")
                self._set(_eventless=wanted)
            except pynvml.NVMLError as error:
                seconds = backoff.failed()
                log.warning("card_events_retried", seconds=round(seconds, 1), error=str(error))
                if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    # NVML does not report which card; the next reading does.
                    on_event(CardEvent(gpu_uuid=None, kind=EventKind.UNAVAILABLE))
            else:
                backoff.succeeded()
            finally:
                self._set(_is_open=False)
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, timeout=seconds)

    def _set(self, **changes: Any) -> None:
        with self._changed:
            for name, value in changes.items():
                setattr(self, name, value)
            self._changed.notify_all()

    def _may_open(self) -> bool:
        wanted = self.wanted & self._indices.keys()
        return bool(wanted) and self.wanted != self._eventless and not self._is_paused

    def _session(self, wanted: frozenset[str], on_event: Callable[[CardEvent], None]) -> None:
        """Pass on the events of one set, until another set is needed.

        Raises:
            pynvml.NVMLError: The set cannot be used any longer.
        """
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
        try:
            events = pynvml.nvmlEventSetCreate()
            try:
                cards = self._registered(events, wanted)
                if not cards:
                    self._set(_eventless=wanted)
                while wanted == self.wanted and self._may_open() and not self._stopping:
                    event = _next(events, cards)
                    if event is not None:
                        on_event(event)
            finally:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlEventSetFree(events)
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _registered(self, events: Any, wanted: frozenset[str]) -> _Cards:
        """Register the cards' events and return the registered cards; none if none has events.

        Raises:
            pynvml.NVMLError: No card could be registered, and a retry may succeed.
        """
        with self._changed:
            indices = {uuid: self._indices[uuid] for uuid in wanted & self._indices.keys()}
        cards: dict[int | None, str] = {}
        failed: pynvml.NVMLError | None = None
        for uuid, index in sorted(indices.items()):
            try:
                cards[_register(events, index, uuid)] = uuid
            except pynvml.NVMLError as error:
                text = f"{error}{_ONLY_POLLED}"
                self._throttle.warn("card_only_polled", text, key=uuid, device=uuid)
                if not isinstance(error, _NO_EVENTS):
                    failed = error
        if failed is not None and not cards:
            raise failed
        return cards


def _register(events: Any, index: int, uuid: str) -> int | None:
    """Add a card's events to the set; return the card's address in events.

    Raises:
        pynvml.NVMLError: The events could not be added.
    """
    # By index, because NVML also opens other cards when it searches for a UUID.
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    if pynvml.nvmlDeviceGetUUID(handle) != uuid:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)  # the next reading finds its index
    types = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _EVERY_KIND
    if not types:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    pynvml.nvmlDeviceRegisterEvents(handle, types, events)
    return ctypes.cast(handle, ctypes.c_void_p).value


def _next(events: Any, cards: _Cards) -> CardEvent | None:
    """Return the next event; None if there is none within a moment.

    Raises:
        pynvml.NVMLError: The set cannot be used any longer.
    """
    try:
        found = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
    except pynvml.NVMLError_Timeout:
        return None
    kind = _KINDS.get(found.eventType)
    if kind is None:
        return None
    uuid = cards.get(ctypes.cast(found.device, ctypes.c_void_p).value)
    code = int(found.eventData) if kind is EventKind.XID else 0
    instance = None if found.gpuInstanceId == _WHOLE_CARD else int(found.gpuInstanceId)
    return CardEvent(gpu_uuid=uuid, kind=kind, code=code, gpu_instance=instance)
