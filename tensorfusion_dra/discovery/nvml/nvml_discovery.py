"""The cards of this node, asked of NVIDIA's driver through NVML."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.discovery import estimate, recording, sysfs
from tensorfusion_dra.discovery.models import ModelTable, Rating
from tensorfusion_dra.discovery.nvml import nvml_library
from tensorfusion_dra.discovery.nvml.events import NvmlEvents
from tensorfusion_dra.discovery.nvml.nvml_library import Loaded
from tensorfusion_dra.discovery.nvml.own_thread import ClosedError, OverdueError, OwnThread
from tensorfusion_dra.discovery.recording import GpuAnswers, Recording, Refusal
from tensorfusion_dra.driver.ports.discovery import HungError

T = TypeVar("T")

WAIT_SECONDS: Final = 30.0
"""Opening a card takes seconds while the driver initialises it."""

_FRESH_SECONDS: Final = 600.0
"""So late at most a card is found that appeared where /sys does not tell it."""

_ERROR_NAMES: Final[dict[int, str]] = {
    value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")
}
_DRIVER_NOT_LOADED: Final = "NVML_ERROR_DRIVER_NOT_LOADED"
_VERSION_MISMATCH: Final = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
_UNINITIALIZED: Final = "NVML_ERROR_UNINITIALIZED"

# Whichever card was asked about, these concern NVML as a whole.
_NO_ANSWER_AT_ALL: Final = frozenset({_DRIVER_NOT_LOADED, _VERSION_MISMATCH, _UNINITIALIZED})

_WAITED_FOR: Final = {
    _DRIVER_NOT_LOADED: "the NVIDIA kernel driver to be loaded",
    _VERSION_MISMATCH: "library and kernel driver of one version",
    "NVML_ERROR_NO_PERMISSION": "access to /dev/nvidiactl",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "a newer NVIDIA driver",
}


class NvmlDiscovery:
    """Discovery through the NVIDIA driver of this machine.

    NVML is started and shut down again at every reading, so that a card is found that appeared
    since, and a driver that was replaced. Between readings no device file is open but for events.

    A process has room for one: pynvml keeps the functions of the first library it called.

    Attributes:
        events: What the same driver reports by itself.
    """

    def __init__(
        self,
        models: ModelTable,
        *,
        library: Path | None = None,
        driver_root: Path = Path("/"),
        sysfs_root: Path = Path("/sys"),
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """Loads and asks nothing yet.

        Args:
            models: Compute by name; for a card that it lacks, it is estimated.
            library: libnvidia-ml.so.1 itself; None searches for it.
            driver_root: Searched first, for example /run/nvidia/driver; then the loader's path.
            sysfs_root: Where the node's /sys is.
            wait_seconds: The longest that a reading may take.
        """
        self._models = models
        self._sysfs = sysfs_root
        self._wait_seconds = wait_seconds
        self._reader = _Reader(library, driver_root)
        self._thread = OwnThread("nvml")
        self.events: Final = NvmlEvents()
        self._last: Inventory | None = None
        self._bound: frozenset[str] = frozenset()
        self._fresh_at = 0.0

    def read(self) -> Inventory:
        """Every card of the node as it is now.

        Raises:
            HungError: A call has been running for too long.
            RetryableError: There is no answer yet (no library, driver not loaded); the text says
                what is waited for.
            FatalError: The library was replaced under this process; only a new one can load it.
        """
        bound = sysfs.bound(self._sysfs)
        last, self._last = self._last, None
        if last is None or bound != self._bound or self._is_to_be_fresh(last):
            with self.events.paused():
                found = self._inventory()
            self._fresh_at = time.monotonic()
        else:
            found = self._inventory()
        self._last, self._bound = found, bound
        self.events.found({gpu.uuid: gpu.index for gpu in found.gpus})
        return found

    def raw(self) -> dict[str, object]:
        """What NVML answers to every question, for json; a refusal is ``{"error": name}``.

        Raises:
            RetryableError: As read().
            FatalError: As read().
        """
        return self._recording().as_json()

    def close(self, *, wait_seconds: float = 5.0) -> None:
        """Ends the thread; one that hangs in the driver is left to the end of the process."""
        self._thread.close(wait_seconds=wait_seconds)

    def _is_to_be_fresh(self, last: Inventory) -> bool:
        """Whether NVML is to start anew, because a card is not to stay open, or after a while."""
        if last.lost or {gpu.uuid for gpu in last.gpus} != self.events.watched():
            return True
        return time.monotonic() - self._fresh_at >= _FRESH_SECONDS

    def _inventory(self) -> Inventory:
        try:
            made = self._recording()
        except (RetryableError, FatalError):
            self.events.found({})
            raise
        return recording.inventory(
            made, rate=self._rate, place=lambda bus: sysfs.place(self._sysfs, bus)
        )

    def _recording(self) -> Recording:
        try:
            return self._thread.run(self._reader.record, wait_seconds=self._wait_seconds)
        except OverdueError as error:
            question, seconds = self._reader.open_question()
            raise HungError(
                f"NVML: {question}, asked {seconds:.0f} s ago, is without an answer, in a reading "
                f"that began {error.age_seconds:.0f} s ago, expected it within "
                f"{self._wait_seconds:g} s",
                question,
            ) from error
        except ClosedError as error:
            raise RetryableError("NVML: closed, expected to be open") from error

    def _rate(self, answers: GpuAnswers) -> Rating | None:
        name = "" if isinstance(answers.name, Refusal) else answers.name
        return self._models.lookup(name) or estimate.rating(
            name,
            cores=_told(answers.cores),
            max_sm_clock_mhz=_told(answers.max_sm_clock_mhz),
            compute_capability=_told(answers.compute_capability),
        )


class _Reader:
    """Everything that calls NVML; used in one thread, but for open_question()."""

    def __init__(self, library: Path | None, driver_root: Path) -> None:
        self._candidates = functools.partial(nvml_library.candidates, library, driver_root)
        self._loaded: Loaded | None = None
        self._open: tuple[str, float] | None = None  # other threads read it; replaced as a whole

    def open_question(self) -> tuple[str, float]:
        """The call that NVML is in, and for how many seconds."""
        question = self._open
        if question is None:
            return "it", 0.0
        return question[0], time.monotonic() - question[1]

    def record(self) -> Recording:
        """One reading, from start to shutdown of NVML.

        Raises:
            RetryableError: NVML cannot be loaded or started, or stopped answering.
            FatalError: The library was replaced after this process loaded it.
        """
        library = self._load()
        # With this flag a node that has lost its cards is one with none, not one without driver.
        self._demand("nvmlInitWithFlags", pynvml.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        try:
            count = self._demand("nvmlDeviceGetCount", pynvml.nvmlDeviceGetCount)
            return Recording(
                library=library.name,
                driver_version=self._ask("driver version", pynvml.nvmlSystemGetDriverVersion),
                cuda_driver_version=self._ask(
                    "CUDA driver version", pynvml.nvmlSystemGetCudaDriverVersion_v2
                ),
                gpus=tuple(self._gpu(index) for index in range(count)),
            )
        finally:
            self._shut_down()

    def _gpu(self, index: int) -> GpuAnswers:
        handle = self._ask(f"handle of GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index)

        def ask(what: str, function: Callable[[Any], Any]) -> Any:
            if isinstance(handle, Refusal):
                return handle
            return self._ask(f"{what} of GPU {index}", function, handle)

        memory = ask("memory", _memory_bytes)
        total, reserved = (memory, memory) if isinstance(memory, Refusal) else memory
        return GpuAnswers(
            index=index,
            handle=handle if isinstance(handle, Refusal) else "open",
            uuid=ask("uuid", pynvml.nvmlDeviceGetUUID),
            name=ask("name", pynvml.nvmlDeviceGetName),
            memory_bytes=total,
            reserved_bytes=reserved,
            bus_id=ask("PCI bus id", lambda card: pynvml.nvmlDeviceGetPciInfo(card).busId),
            minor=ask("minor number", pynvml.nvmlDeviceGetMinorNumber),
            brand=ask("brand", pynvml.nvmlDeviceGetBrand),
            architecture=ask("architecture", pynvml.nvmlDeviceGetArchitecture),
            compute_capability=ask("compute capability", pynvml.nvmlDeviceGetCudaComputeCapability),
            mig_mode=ask("MIG mode", lambda card: tuple(pynvml.nvmlDeviceGetMigMode(card))),
            cores=ask("cores", pynvml.nvmlDeviceGetNumGpuCores),
            max_sm_clock_mhz=ask(
                "clock", lambda card: pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM)
            ),
            recovery_action=ask("recovery action", _recovery_action),
        )

    def _ask(self, question: str, function: Callable[..., Any], *args: object) -> Any:
        """The answer, or NVML's refusal; raises only if NVML as a whole is gone."""
        try:
            with self._asking(question):
                return function(*args)
        except pynvml.NVMLError as error:
            refusal = Refusal(_ERROR_NAMES.get(error.value, f"NVML_ERROR_{error.value}"))
            if refusal.error in _NO_ANSWER_AT_ALL:
                raise self._gone(question, refusal) from error
            return refusal
        except UnicodeDecodeError:
            return Refusal("not UTF-8")

    @contextlib.contextmanager
    def _asking(self, question: str) -> Iterator[None]:
        self._open = (question, time.monotonic())
        try:
            yield
        finally:
            self._open = None

    def _demand(self, question: str, function: Callable[..., Any], *args: object) -> Any:
        answer = self._ask(question, function, *args)
        if isinstance(answer, Refusal):
            raise self._gone(question, answer)
        return answer

    def _gone(self, question: str, refusal: Refusal) -> RetryableError | FatalError:
        loaded = self._load()
        found = f"NVML: {question}: {loaded.name} answered {refusal.error}"
        if refusal.error == _VERSION_MISMATCH and loaded.is_replaced():
            return FatalError(f"{found}; it was replaced since, expected a new process to load it")
        waited_for = _WAITED_FOR.get(refusal.error, "NVML to answer")
        return RetryableError(f"{found}, waiting for {waited_for}")

    def _shut_down(self) -> None:
        # What cannot be shut down is already gone or is counted once too often; both are harmless.
        with self._asking("nvmlShutdown"), contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _load(self) -> Loaded:
        """The library of this process, which pynvml calls from now on."""
        if self._loaded is None:
            with self._asking("loading the library"):
                self._loaded = nvml_library.load(self._candidates())
            # pynvml itself would take what the loader's path has.
            pynvml.nvmlLib = self._loaded.calls
        return self._loaded


def _memory_bytes(card: Any) -> tuple[int, int | Refusal]:
    """Total and reserved memory; drivers before 510 do not tell the latter apart."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        refusal = Refusal(_ERROR_NAMES.get(error.value, f"NVML_ERROR_{error.value}"))
        return int(pynvml.nvmlDeviceGetMemoryInfo(card).total), refusal
    return int(memory.total), int(memory.reserved)


def _recovery_action(card: Any) -> int:
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    (answer,) = pynvml.nvmlDeviceGetFieldValues(card, [field])
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _told(answer: T | Refusal) -> T | None:
    return None if isinstance(answer, Refusal) else answer
