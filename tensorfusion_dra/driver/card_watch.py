"""Reads the cards again and again, and at once when the driver reports something."""

import time
from collections.abc import Callable
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.ports.discovery import CardEvents, HungError

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
        self._woken = Event()
        self._stop = Event()
        self._told_waiting = ""

    def stop(self) -> None:
        """Ends run() and run_events()."""
        self._stop.set()
        self._woken.set()
        if self._events is not None:
            self._events.stop()

    def run(self) -> None:
        """Reads until stopped.

        Raises:
            FatalError: The driver was replaced; only a new process can load its library.
        """
        while not self._stop.is_set():
            began = time.monotonic()
            self._woken.clear()
            self.read()
            self._woken.wait(self._poll_seconds)
            self._stop.wait(max(0.0, began + self._pause_seconds() - time.monotonic()))

    def run_events(self) -> None:
        """Takes in what the driver reports, until stopped."""
        if self._events is not None:
            self._events.run(self._take)
        self._stop.wait()

    def read(self) -> None:
        """Reads the cards once."""
        before = self._catalog.current()
        try:
            self._catalog.refresh()
        except RetryableError as error:
            # A call that hangs grows older with every reading, and is told once.
            waiting = error.question if isinstance(error, HungError) else str(error)
            if waiting != self._told_waiting:
                self._told_waiting = waiting
                log.warning("gpus_awaited", error=str(error))
        else:
            self._told_waiting = ""
            if self._events is not None:
                self._events.watch(self._healthy())
        if self._catalog.current() is not before:
            self._on_change()

    def _take(self, event: CardEvent) -> None:
        if self._catalog.report(event):
            self._on_change()
        # The driver may ask for a recovery now, or a card may be lost.
        self._woken.set()

    def _healthy(self) -> frozenset[str]:
        catalog = self._catalog.current()
        if catalog is None:
            return frozenset()
        return frozenset(d.gpu.uuid for d in catalog.devices if d.name not in catalog.sick)

    def _pause_seconds(self) -> float:
        return min(_LEAST_SECONDS, self._poll_seconds)
