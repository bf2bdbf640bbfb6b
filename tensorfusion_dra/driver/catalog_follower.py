"""Announcements of GPUs that become unhealthy or healthy again, to the Node and to their claims.

A change of a GPU's health becomes a log line, an Event on the Node, and a new status of each claim
that has a share of the GPU.
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
from tensorfusion_dra.driver.publish import Catalog, DeviceCatalog
from tensorfusion_dra.driver.status import StatusReporter, utc_now
from tensorfusion_dra.state.claim_store import ClaimStore

log = structlog.get_logger()

_RETRY_SECONDS: Final = 60.0


class HealthAnnouncer:
    """Loop that announces changes of health, in its own thread because it waits for the API server.

    An announcement that fails is repeated each minute. Of several changes of one device that could
    not be announced, only the last one is.
    """

    def __init__(
        self,
        catalog: DeviceCatalog,
        store: ClaimStore,
        status: StatusReporter,
        events: Events,
    ) -> None:
        """Begin with what is unhealthy now, which another process has announced.

        Args:
            catalog: Source of the health of the devices.
            store: The claims of this node.
            status: Writes the status of claims.
            events: Of this loop's thread alone.
        """
        self._catalog = catalog
        self._store = store
        self._status = status
        self._events = events
        self._pending_events: dict[str, Callable[[], bool]] = {}  # what writes each, by device
        self._pending_devices: set[str] = set()  # devices whose claims need a new status
        self._stop = Event()
        self._began = utc_now()

    def stop(self) -> None:
        """End run()."""
        self._stop.set()
        self._catalog.wake_waiting()

    def run(self) -> None:
        """Announce every change until stopped.

        Raises:
            FatalError: The store is damaged.
        """
        seen: Catalog | None = None
        while not self._stop.is_set():
            current = self._catalog.wait_changed(
                seen, seconds=_RETRY_SECONDS, stopped=self._stop.is_set
            )
            if current is not None and current is not seen:
                self.note(seen.unhealthy if seen else {}, current.unhealthy)
                seen = current
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

    def announce(self) -> None:
        """Announce what was noted; what fails is announced by the next call."""
        if self._pending_devices:
            try:
                claims = self._store.claims()
            except RetryableError as error:
                log.warning("health_report_failed", error=str(error))
            else:
                for claim in claims:
                    if any(share.device in self._pending_devices for share in claim.shares):
                        self._status.report_changed(claim)
                self._pending_devices.clear()
        while self._pending_events:
            name, write = next(iter(self._pending_events.items()))
            if not write():
                return
            del self._pending_events[name]
