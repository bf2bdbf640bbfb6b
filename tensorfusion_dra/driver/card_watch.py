"""Reads the cards again and again, and at once when the driver reports something."""

import math
import time
from collections.abc import Callable
from typing import Final

import structlog

from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.ports.discovery import CardEvents, HungError
from tensorfusion_dra.driver.wakeup import Wakeup

log = structlog.get_logger()

_LEAST_SECONDS: Final = 1.0
"""Between two readings, however much is reported."""


class CardWatch:
    """A loop of its own, because a reading can hang: nothing else may wait for it."""

    def __init__(
        self,
        catalog: CatalogReader,
        events: CardEvents | None,
        *,
        poll_seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        """Reads nothing yet.

        Args:
            events: None if nothing is waited for.
            poll_seconds: How often the cards are read without a report.
            on_change: The catalog is another one now.
        """
        self._catalog = catalog
        self._events = events
        self._poll_seconds = poll_seconds
        self._on_change = on_change
        self._wakeup = Wakeup()
        self._throttle = LogThrottle(quiet_seconds=math.inf)

    def stop(self) -> None:
        """Ends run() and run_events()."""
        self._wakeup.stop()
        if self._events is not None:
            self._events.stop()

    def run(self) -> None:
        """Reads until stopped.

        Raises:
            FatalError: The driver was replaced; only a new process can load its library.
        """
        while self._wakeup.next_round():
            began = time.monotonic()
            self.read()
            self._wakeup.wait(self._poll_seconds)
            self._wakeup.pause(began + self._pause_seconds() - time.monotonic())

    def run_events(self) -> None:
        """Takes in what the driver reports, until stopped."""
        if self._events is not None:
            self._events.run(self._take)
        self._wakeup.wait_stopped()

    def read(self) -> None:
        """Reads the cards once."""
        before = self._catalog.current()
        try:
            self._catalog.refresh()
        except RetryableError as error:
            # A call that hangs grows older with every reading, and is told once.
            waiting = error.question if isinstance(error, HungError) else str(error)
            if self._throttle.is_new(waiting):
                log.warning("gpus_awaited", error=str(error))
        else:
            self._throttle.over()
            if self._events is not None:
                self._events.watch(self._healthy())
        if self._catalog.current() is not before:
            self._on_change()

    def _take(self, event: CardEvent) -> None:
        if self._catalog.report(event):
            self._on_change()
        # The driver may ask for a recovery now, or a card may be lost.
        self._wakeup.wake()

    def _healthy(self) -> frozenset[str]:
        catalog = self._catalog.current()
        if catalog is None:
            return frozenset()
        return frozenset(d.gpu.uuid for d in catalog.devices if d.name not in catalog.sick)

    def _pause_seconds(self) -> float:
        return min(_LEAST_SECONDS, self._poll_seconds)
