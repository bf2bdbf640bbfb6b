"""Periodic readings of the cards, and one at once after an event or when a provider wakes it."""

import math
import time
from collections.abc import Callable
from typing import Final

import structlog

from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.ports.discovery import CardEvents, HungError
from tensorfusion_dra.runtime.log_throttle import LogThrottle
from tensorfusion_dra.runtime.wakeup import Wakeup

log = structlog.get_logger()

_LEAST_SECONDS: Final = 1.0
"""Least time between two readings, however many events are reported."""


class CardWatch:
    """Loop that reads the cards; it does nothing else, because a reading can hang."""

    def __init__(
        self,
        catalog: DeviceCatalog,
        events: CardEvents | None,
        *,
        poll_seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        """Read nothing yet.

        Args:
            catalog: Refreshed by each reading.
            events: Source of the NVIDIA driver's events; None to poll only.
            poll_seconds: Time between two readings if no event is reported.
            on_change: Called when the catalog has changed.
        """
        self._catalog = catalog
        self._events = events
        self._poll_seconds = poll_seconds
        self._on_change = on_change
        self._wakeup = Wakeup()
        self._throttle = LogThrottle(quiet_seconds=math.inf)
        catalog.providers.on_wake(self._wakeup.wake)

    def stop(self) -> None:
        """End run() and run_events()."""
        self._wakeup.stop()
        if self._events is not None:
            self._events.stop()

    def run(self) -> None:
        """Read the cards until stopped.

        Raises:
            FatalError: The NVIDIA driver was replaced; only a new process can load its library. Or
                the ledger is damaged.
        """
        while self._wakeup.next_round():
            began = time.monotonic()
            self.read()
            self._wakeup.wait(self._poll_seconds)
            pause = min(_LEAST_SECONDS, self._poll_seconds)
            self._wakeup.pause(began + pause - time.monotonic())

    def run_events(self) -> None:
        """Handle the events that the NVIDIA driver reports, until stopped."""
        if self._events is not None:
            self._events.run(self._note_event)
        self._wakeup.wait_stopped()

    def read(self) -> None:
        """Read the cards once.

        Raises:
            FatalError: See run().
        """
        before = self._catalog.current()
        try:
            self._catalog.refresh()
        except RetryableError as error:
            # The text of a hanging call has its age, so it is different after each reading. The
            # call itself is not, so that it is logged once.
            cause = error.call if isinstance(error, HungError) else str(error)
            if self._throttle.is_new(cause):
                log.warning("gpus_awaited", error=str(error))
        else:
            self._throttle.over()
            if self._events is not None:
                self._events.watch(self._healthy())
        if self._catalog.current() is not before:
            self._on_change()

    def _note_event(self, event: CardEvent) -> None:
        if self._catalog.note_event(event):
            self._on_change()
        # Read at once: the NVIDIA driver may require a recovery now, or a card may be lost.
        self._wakeup.wake()

    def _healthy(self) -> frozenset[str]:
        catalog = self._catalog.current()
        if catalog is None:
            return frozenset()
        return frozenset(d.gpu.uuid for d in catalog.devices if d.name not in catalog.sick)
