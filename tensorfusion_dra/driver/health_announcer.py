"""Tells the Node and the claims that a GPU became unhealthy, or healthy again."""

import math
import time
from collections.abc import Callable, Mapping
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.health import Sickness
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader
from tensorfusion_dra.driver.ports.cluster import Events
from tensorfusion_dra.driver.status import StatusReporter, utc_now
from tensorfusion_dra.state.ledger import Ledger

log = structlog.get_logger()

_WAIT_SECONDS: Final = 60.0
_FIRST_RETRY_SECONDS: Final = 1.0
_LONGEST_RETRY_SECONDS: Final = 600.0


class HealthAnnouncer:
    """A loop of its own, because an Event may wait for the API server.

    What could not be told is told later, ever more rarely tried, and for each device only what was
    last heard of it.
    """

    def __init__(
        self,
        catalog: CatalogReader,
        ledger: Ledger,
        status: StatusReporter,
        events: Events,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tells nothing yet; what an earlier process saw was told by that one.

        Args:
            clock: In seconds; for the time of the next try.
        """
        self._catalog = catalog
        self._ledger = ledger
        self._status = status
        self._events = events
        self._clock = clock
        self._backoff = Backoff(
            first_seconds=_FIRST_RETRY_SECONDS, longest_seconds=_LONGEST_RETRY_SECONDS
        )
        self._retry_at = math.inf
        self._untold: dict[str, Sickness | None] = {}  # Events by device; None if it is healthy
        self._unreported: set[str] = set()  # devices whose claims are to be reported
        self._stop = Event()
        self._began = utc_now()

    def stop(self) -> None:
        """Ends run()."""
        self._stop.set()
        self._catalog.wake_waiting()

    def run(self) -> None:
        """Tells until stopped.

        Raises:
            FatalError: The ledger is damaged.
        """
        seen: Catalog | None = None
        while not self._stop.is_set():
            seconds = min(_WAIT_SECONDS, max(0.0, self._retry_at - self._clock()))
            self._catalog.wait_changed(seen, seconds=seconds, stopped=self._stop.is_set)
            current = self._catalog.current()
            if current is not None and current is not seen:
                self.tell(seen.sick if seen else {}, current.sick)
                seen = current
            self.retry()

    def tell(self, before: Mapping[str, Sickness], now: Mapping[str, Sickness]) -> None:
        """Tells how the two differ."""
        changed = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        changed -= {name for name in changed - before.keys() if now[name].since < self._began}
        for name in sorted(changed):
            sickness = now.get(name)
            if sickness is None:
                log.info("gpu_recovered", device=name)
            else:
                text, reason = sickness.worst.text, sickness.worst.reason
                log.warning("gpu_unhealthy", device=name, reason=reason, error=text)
            self._untold.pop(name, None)  # what happened last is told last
            self._untold[name] = sickness
        if changed:
            self._unreported |= changed
            self._backoff.succeeded()
            self._tell_all()

    def retry(self) -> None:
        """Tells what could not be told before, once it is time to."""
        if self._clock() >= self._retry_at:
            self._tell_all()

    def _tell_all(self) -> None:
        is_reported = self._report_claims()
        is_told = self._write_events()
        if is_reported and is_told:
            self._backoff.succeeded()
            self._retry_at = math.inf
        else:
            self._retry_at = self._clock() + self._backoff.failed()

    def _write_events(self) -> bool:
        """True once nothing is untold; stops at the first Event that cannot be written."""
        for name, sickness in list(self._untold.items()):
            if sickness is None:
                written = self._events.note(names.EVENT_GPU_RECOVERED, f"{name} is healthy again")
            else:
                text = f"{name}: {sickness.worst.text}"
                written = self._events.warn(names.EVENT_GPU_UNHEALTHY, text)
            if not written:
                return False
            del self._untold[name]
        return True

    def _report_claims(self) -> bool:
        """True once the claims of all changed devices are with the status reporter."""
        if not self._unreported:
            return True
        try:
            claims = self._ledger.claims()
        except RetryableError as error:
            log.warning("health_report_failed", error=str(error))
            return False
        for claim in claims:
            if any(share.device in self._unreported for share in claim.shares):
                self._status.report(claim)
        self._unreported.clear()
        return True
