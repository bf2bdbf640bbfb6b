"""What the NVIDIA driver reports of its cards, by NVML's events.

NVML may be called from several threads, but one event set only from one. While a set is open the
driver cannot be unloaded, the cards in it cannot be reset, and NVML counts its cards as it did when
it was started. So a card that is not to be watched is not in the set, and a reading that has to
find something new takes place while the set is closed.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Any, Final

import pynvml
import structlog

from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.driver.backoff import Backoff

log = structlog.get_logger()

_KINDS: Final[Mapping[int, EventKind]] = {
    pynvml.nvmlEventTypeXidCriticalError: EventKind.XID,
    pynvml.nvmlEventTypeDoubleBitEccError: EventKind.UNCORRECTABLE_ECC,
    pynvml.nvmlEventTypeDramRetirementFailure: EventKind.RETIREMENT_FAILED,
    pynvml.nvmlEventTypeFatalPoisonError: EventKind.FATAL_POISON,
    pynvml.nvmlEventTypeGpuUnavailableError: EventKind.UNAVAILABLE,
    pynvml.nvmlEventTypeGpuRecoveryAction: EventKind.RECOVERY_ACTION,
}
_EVERY_KIND: Final = sum(_KINDS)
_WAIT_MS: Final = 250
"""How long a change of what is watched may go unseen."""
_CLOSE_SECONDS: Final = 3.0

_Cards = Mapping[int | None, str]
"""UUIDs by the address that an event carries."""


_NO_EVENTS: Final = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)


class NvmlEvents:
    """See ports.discovery.CardEvents. NVML is loaded and tried by readings; see found()."""

    def __init__(self) -> None:
        self._changed = Condition()  # guards all below
        self._wanted: frozenset[str] = frozenset()
        self._silent: frozenset[str] = frozenset()  # of these, no card has events
        self._indices: Mapping[str, int] = {}
        self._is_paused = False
        self._is_open = False
        self._stopping = False
        self._told: set[str] = set()  # of run()'s thread alone

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """See ports.discovery.CardEvents."""
        self._set(_wanted=gpu_uuids)

    def stop(self) -> None:
        """See ports.discovery.CardEvents."""
        self._set(_stopping=True)

    def found(self, indices: Mapping[str, int]) -> None:
        """What the last reading found: NVML's indices by UUID; nothing if it failed."""
        self._set(_indices=indices)

    def watched(self) -> frozenset[str]:
        """The cards that are waited for."""
        with self._changed:
            return self._wanted

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, no card is kept open and NVML is not started; waits a few seconds for that."""
        with self._changed:
            self._is_paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_open, timeout=_CLOSE_SECONDS)
        try:
            yield
        finally:
            self._set(_is_paused=False)

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """See ports.discovery.CardEvents."""
        backoff = Backoff(first_seconds=1, longest_seconds=60)
        while (wanted := self._turn()) is not None:
            seconds = 0.0
            try:
                self._session(wanted, on_event)
            except _NO_EVENTS as error:
                self._tell("card_events_missing", str(error))
                self._set(_silent=wanted)
            except pynvml.NVMLError as error:
                seconds = backoff.failed()
                log.warning("card_events_retried", seconds=round(seconds, 1), error=str(error))
                if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    # NVML does not say which; the next reading does.
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

    def _turn(self) -> frozenset[str] | None:
        """The cards to wait for, once there are some; None when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._may_open())
            if self._stopping:
                return None
            self._is_open = True
            return self._wanted

    def _may_open(self) -> bool:
        wanted = self._wanted & self._indices.keys()
        return bool(wanted) and self._wanted != self._silent and not self._is_paused

    def _goes_on(self, wanted: frozenset[str]) -> bool:
        with self._changed:
            return wanted == self._wanted and self._may_open() and not self._stopping

    def _session(self, wanted: frozenset[str], on_event: Callable[[CardEvent], None]) -> None:
        """Waits until something else is wanted.

        Raises:
            pynvml.NVMLError: The set is of no use any more.
        """
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
        try:
            events = pynvml.nvmlEventSetCreate()
            try:
                cards = self._registered(events, wanted)
                if not cards:
                    self._set(_silent=wanted)
                while self._goes_on(wanted):
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
        """The cards that are in the set now; none if none of them has events.

        Raises:
            pynvml.NVMLError: None of them is in the set, and that may change.
        """
        with self._changed:
            indices = {uuid: self._indices[uuid] for uuid in wanted & self._indices.keys()}
        cards: dict[int | None, str] = {}
        failed: pynvml.NVMLError | None = None
        for uuid, index in sorted(indices.items()):
            try:
                cards[_register(events, index, uuid)] = uuid
            except pynvml.NVMLError as error:
                self._tell("card_only_polled", str(error), device=uuid)
                if not isinstance(error, _NO_EVENTS):
                    failed = error
        if failed is not None and not cards:
            raise failed
        return cards

    def _tell(self, event: str, error: str, **facts: str) -> None:
        """Says it once: a set is opened again whenever another card is to be watched."""
        told = f"{event} {facts} {error}"
        if told not in self._told:
            self._told.add(told)
            log.warning(event, error=f"{error}; such a GPU's health is only polled", **facts)


def _register(events: Any, index: int, uuid: str) -> int | None:
    """The address of the card, whose events are in the set from now on.

    Raises:
        pynvml.NVMLError: They are not.
    """
    # By index, because NVML opens other cards too in search of a UUID.
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    if pynvml.nvmlDeviceGetUUID(handle) != uuid:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)  # the next reading tells where it is
    types = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _EVERY_KIND
    if not types:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    pynvml.nvmlDeviceRegisterEvents(handle, types, events)
    return ctypes.cast(handle, ctypes.c_void_p).value


def _next(events: Any, cards: _Cards) -> CardEvent | None:
    """What is reported next; None if nothing is for a moment.

    Raises:
        pynvml.NVMLError: The set is of no use any more.
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
    return CardEvent(gpu_uuid=uuid, kind=kind, code=code)
