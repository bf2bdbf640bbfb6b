"""Tells the Node and the claims that a GPU became unhealthy, or healthy again."""

from collections.abc import Mapping
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.health import Sickness
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader
from tensorfusion_dra.driver.ports.cluster import Events
from tensorfusion_dra.driver.ports.state import Ledger
from tensorfusion_dra.driver.status import StatusReporter, utc_now

log = structlog.get_logger()

_WAIT_SECONDS: Final = 60.0


class HealthNews:
    """A loop of its own, because an Event may wait for the API server."""

    def __init__(
        self, catalog: CatalogReader, ledger: Ledger, status: StatusReporter, events: Events
    ) -> None:
        """Tells nothing yet; what an earlier process saw was told by that one."""
        self._catalog = catalog
        self._ledger = ledger
        self._status = status
        self._events = events
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
            self._catalog.wait_changed(seen, seconds=_WAIT_SECONDS, stopped=self._stop.is_set)
            current = self._catalog.current()
            if current is not None and current is not seen:
                self.tell(seen.sick if seen else {}, current.sick)
                seen = current

    def tell(self, before: Mapping[str, Sickness], now: Mapping[str, Sickness]) -> None:
        """Tells how the two differ."""
        changed = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        changed -= {name for name in changed - before.keys() if now[name].since < self._began}
        for name in sorted(changed):
            if (sickness := now.get(name)) is not None:
                text, reason = sickness.worst.text, sickness.worst.reason
                log.warning("gpu_unhealthy", device=name, reason=reason, error=text)
                self._events.warn(names.EVENT_GPU_UNHEALTHY, f"{name}: {text}")
            else:
                log.info("gpu_recovered", device=name)
                self._events.note(names.EVENT_GPU_RECOVERED, f"{name} is healthy again")
        if changed:
            self._report_claims(changed)

    def _report_claims(self, devices: set[str]) -> None:
        try:
            claims = self._ledger.claims()
        except RetryableError as error:
            # The claims' status stays as it was until each is prepared again.
            log.warning("health_not_reported", error=str(error))
            return
        for claim in claims:
            if any(share.device in devices for share in claim.shares):
                self._status.report(claim)
