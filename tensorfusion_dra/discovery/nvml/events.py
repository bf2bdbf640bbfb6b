"""Events of the cards, such as XIDs, that the NVIDIA driver reports through NVML.

Theory of operation. NVML may be called from several threads, but one event set only from one. While
a set is open, the driver cannot be unloaded, the cards in the set cannot be reset, and NVML keeps
the number of cards that it found when it was initialised. Two rules follow:

- Only watched cards are in the set. When the watched cards change, run() closes the set and opens
  another one.
- A reading that has to find new cards closes the set for its duration; see paused().

Example: GPU 0 gets an XID. The tracker stops watching it, run() opens a set without it, and an
administrator can reset the card. Once it is healthy, it is watched again.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Any, Final

import pynvml
import structlog

from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.runtime.loops import Backoff

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
"""Longest delay until run() notices that the watched cards changed."""
_CLOSE_SECONDS: Final = 3.0

_Cards = Mapping[int | None, str]
"""UUIDs by the address in an event."""

_NO_EVENTS: Final = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)


class NvmlEvents:
    """Source of card events. It relies on readings to load NVML; see update_indices()."""

    def __init__(self) -> None:
        self._changed = Condition()  # guards all below
        self._wanted: frozenset[str] = frozenset()
        self._eventless: frozenset[str] = frozenset()  # a set of cards of which none has events
        self._indices: Mapping[str, int] = {}
        self._is_paused = False
        self._is_open = False
        self._stopping = False
        self._logged: set[str] = set()  # used by run()'s thread only

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """Wait for events of these cards, and of no others, from now on."""
        self._set(_wanted=gpu_uuids)

    def stop(self) -> None:
        """End run()."""
        self._set(_stopping=True)

    def update_indices(self, indices: Mapping[str, int]) -> None:
        """Set NVML's indices by UUID from the last reading; empty if it failed."""
        self._set(_indices=indices)

    def watched(self) -> frozenset[str]:
        """Return the cards whose events are waited for."""
        with self._changed:
            return self._wanted

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
        while (wanted := self._next_session()) is not None:
            seconds = 0.0
            try:
                self._session(wanted, on_event)
            except _NO_EVENTS as error:
                self._log_once("card_events_unavailable", str(error))
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

    def _next_session(self) -> frozenset[str] | None:
        """Wait until a set may be opened; return its cards, or None when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._may_open())
            if self._stopping:
                return None
            self._is_open = True
            return self._wanted

    def _may_open(self) -> bool:
        wanted = self._wanted & self._indices.keys()
        return bool(wanted) and self._wanted != self._eventless and not self._is_paused

    def _continues(self, wanted: frozenset[str]) -> bool:
        with self._changed:
            return wanted == self._wanted and self._may_open() and not self._stopping

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
                while self._continues(wanted):
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
                self._log_once("card_only_polled", str(error), device=uuid)
                if not isinstance(error, _NO_EVENTS):
                    failed = error
        if failed is not None and not cards:
            raise failed
        return cards

    def _log_once(self, event: str, error: str, **facts: str) -> None:
        """Log a warning the first time only, because every new set runs into the same error."""
        line = f"{event} {facts} {error}"
        if line not in self._logged:
            self._logged.add(line)
            log.warning(event, error=f"{error}; GPU health is only polled", **facts)


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
    return CardEvent(gpu_uuid=uuid, kind=kind, code=code)
