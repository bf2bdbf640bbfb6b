"""Divides the cards anew among their tenants whenever the catalog changes."""

from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.catalog import Catalog, CatalogReader
from tensorfusion_dra.driver.tenants import Tenants

log = structlog.get_logger()

_WAIT_SECONDS: Final = 60.0


class Division:
    """A loop that keeps the limits of prepared claims what the node's cards, pool and rules give.

    A claim that comes or goes divides its cards itself. But a pool may come to hand out less, rules
    may have changed over a restart, and a claim may go before the cards were read for the first
    time. So every new catalog, of which the first after the start is one, divides everything.
    """

    def __init__(
        self,
        catalog: CatalogReader,
        tenants: Tenants,
        *,
        retry_seconds: float = 1.0,
    ) -> None:
        """Divide nothing yet.

        Args:
            catalog: Whose changes count.
            tenants: The node's claims.
            retry_seconds: After a first failure; longer after each further one.
        """
        self._catalog = catalog
        self._tenants = tenants
        self._retry_seconds = retry_seconds
        self._stop = Event()

    def stop(self) -> None:
        """End run()."""
        self._stop.set()
        self._catalog.wake_waiting()

    def run(self) -> None:
        """Divide until stopped.

        Raises:
            FatalError: A newer release has changed the ledger.
        """
        seen: Catalog | None = None
        backoff = Backoff(first_seconds=self._retry_seconds, longest_seconds=_WAIT_SECONDS)
        while not self._stop.is_set():
            self._catalog.wait_changed(seen, seconds=_WAIT_SECONDS, stopped=self._stop.is_set)
            current = self._catalog.current()
            if current is None or current is seen:
                continue
            try:
                self._tenants.divide()
            except RetryableError as error:
                log.warning("limits_not_recomputed", error=str(error))
                self._stop.wait(backoff.failed())
            else:
                backoff.succeeded()
                seen = current
