"""Update limits, statuses and Events after each change of the catalog.

1. The cards are divided again, since a pool may hand out less (claim_upkeep.py).
2. A change of a GPU's health becomes a log line, a new status of each claim that has a share of the
   GPU, and an Event on the Node.

What fails is repeated within a minute. Of several changes of one device that could not be
announced, only the last one is.
"""

from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.ports import Events
from tensorfusion_dra.core.devices.health import Unhealthy
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.claim_upkeep import Upkeep
from tensorfusion_dra.driver.publish import Catalog, DeviceCatalog
from tensorfusion_dra.driver.status import StatusReporter, utc_now
from tensorfusion_dra.runtime.loops import Backoff
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()

_MAX_WAIT_SECONDS: Final = 60.0


class CatalogFollower:
    """Loop that follows the catalog, in its own thread because it waits for the API server."""

    def __init__(
        self,
        catalog: DeviceCatalog,
        store: ClaimStore,
        upkeep: Upkeep,
        status: StatusReporter,
        events: Events,
    ) -> None:
        """Begin with what is unhealthy now, which another process has announced.

        Args:
            catalog: The cards and their health.
            store: The claims of this node.
            upkeep: Divides the cards among the claims.
            status: Writes the status of claims.
            events: Writer for this loop's thread only.
        """
        self._catalog = catalog
        self._store = store
        self._upkeep = upkeep
        self._status = status
        self._events = events
        self._undivided: Catalog | None = None  # whose cards are to be divided again
        self._pending_events: dict[str, Callable[[], bool]] = {}  # what writes each, by device
        self._pending_devices: set[str] = set()  # devices whose claims need a new status
        self._stop = Event()
        self._began = utc_now()

    def stop(self) -> None:
        """End run()."""
        self._stop.set()
        self._catalog.wake_waiting()

    def run(self) -> None:
        """Follow every change until stopped.

        Raises:
            FatalError: A newer release has written a record.
        """
        seen: Catalog | None = None
        seconds = _MAX_WAIT_SECONDS
        backoff = Backoff(first_seconds=0.5, longest_seconds=_MAX_WAIT_SECONDS)
        while not self._stop.is_set():
            current = self._catalog.wait_changed(seen, seconds=seconds, stopped=self._stop.is_set)
            if current is not None and current is not seen:
                self.note(seen.unhealthy if seen else {}, current.unhealthy)
                seen = self._undivided = current
                backoff.succeeded()
            has_failed = False
            for step in (self.report, self.divide):
                try:
                    step()
                except RetryableError as error:
                    has_failed = True
                    log.warning("catalog_retried", error=str(error))
            seconds = backoff.failed() if has_failed else _MAX_WAIT_SECONDS
            self.announce()

    def note(self, before: Mapping[str, Unhealthy], now: Mapping[str, Unhealthy]) -> None:
        """Note and log the differences between two states, given as unhealthy devices by name."""
        changed = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        self._pending_devices |= changed
        for name in sorted(changed):
            unhealthy = now.get(name)
            # Of another process, which may have ended before it wrote the claims' statuses. They
            # may be written twice; Events may not.
            if unhealthy and name not in before and unhealthy.since < self._began:
                continue
            self._pending_events.pop(name, None)  # Events keep the order of the changes
            if unhealthy is None:
                log.info("gpu_recovered", device=name)
                self._pending_events[name] = partial(
                    self._events.note, names.EVENT_GPU_RECOVERED, f"{name} is healthy again"
                )
            else:
                text, reason = unhealthy.worst.text, unhealthy.worst.reason
                log.warning("gpu_unhealthy", device=name, reason=reason, error=text)
                self._pending_events[name] = partial(
                    self._events.warn, names.EVENT_GPU_UNHEALTHY, f"{name}: {text}"
                )

    def report(self) -> None:
        """Report the claims of devices that changed.

        Raises:
            RetryableError: The store cannot be read now.
        """
        if self._pending_devices:
            for claim in self._store.claims():
                if any(share.device in self._pending_devices for share in claim.shares):
                    self._status.report_changed(claim)
            self._pending_devices.clear()

    def divide(self) -> None:
        """Divide the cards, if they changed.

        Raises:
            RetryableError: The store cannot be read or written now.
        """
        if self._undivided is not None:
            self._upkeep.divide(self._undivided.by_name())
            self._undivided = None

    def announce(self) -> None:
        """Write Events, up to the first failure."""
        for name, write in list(self._pending_events.items()):
            if not write():
                return
            del self._pending_events[name]
