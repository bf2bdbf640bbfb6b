"""The loop that reads the cards: how often, and who hears of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.driver import card_watch
from tensorfusion_dra.driver.card_watch import CardWatch
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.ports.discovery import HungError
from tests.support.gpus import NODE, cards
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

A, B = cards(2)


class CountingDiscovery:
    """Cards, with a count of how often they were read, and errors on demand."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None
        self.gpus = (A, B)

    def read(self) -> Inventory:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return Inventory(gpus=self.gpus)


class EventsOnDemand:
    """Hands over what a test reports."""

    def __init__(self) -> None:
        self.watched: frozenset[str] = frozenset()
        self.report: Callable[[CardEvent], None] | None = None
        self._stop = Event()

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        self.watched = gpu_uuids

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        self.report = on_event
        self._stop.wait()

    def stop(self) -> None:
        self._stop.set()


class Setup:
    def __init__(self, *, poll_seconds: float = FOREVER) -> None:
        self.discovery = CountingDiscovery()
        self.events = EventsOnDemand()
        self.catalog = CatalogReader(self.discovery, NODE)
        self.changes = 0
        self.watch = CardWatch(
            self.catalog, self.events, poll_seconds=poll_seconds, on_change=self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    @contextmanager
    def running(self) -> Iterator[Callable[[CardEvent], None]]:
        threads = [Thread(target=part) for part in (self.watch.run, self.watch.run_events)]
        for thread in threads:
            thread.start()
        try:
            assert eventually(lambda: self.changes == 1 and self.events.report is not None)
            assert self.events.report is not None
            yield self.events.report
        finally:
            self.watch.stop()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in threads)


def xid(code: int) -> CardEvent:
    return CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=code)


def test_a_report_is_told_at_once_and_has_the_cards_read_again() -> None:
    setup = Setup()
    with setup.running() as report:
        report(xid(79))

        assert setup.changes == 2
        assert list(setup.catalog.sick()) == [A.uuid.lower()]
        assert eventually(lambda: setup.discovery.reads == 2)
        assert eventually(lambda: setup.events.watched == {B.uuid})


def test_a_storm_of_reports_reads_the_cards_once_in_the_least_time_between_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(card_watch, "_LEAST_SECONDS", FOREVER)
    setup = Setup(poll_seconds=FOREVER)
    with setup.running() as report:
        for _ in range(10_000):
            report(xid(13))

        assert setup.discovery.reads == 1
        assert setup.changes == 1


def test_what_is_waited_for_is_told_once_however_old_it_grows() -> None:
    setup = Setup()
    with capture_logs() as logs:
        for age in range(3):
            setup.discovery.error = HungError(f"asked {age} s ago", "uuid of GPU 1")
            setup.watch.read()

    assert [line["event"] for line in logs] == ["gpus_awaited"]


def test_a_driver_that_was_replaced_ends_the_loop() -> None:
    setup = Setup()
    setup.discovery.error = FatalError("replaced")

    with pytest.raises(FatalError, match="replaced"):
        setup.watch.run()


def test_without_events_the_cards_are_read_all_the_same() -> None:
    setup = Setup()
    watch = CardWatch(setup.catalog, None, poll_seconds=60, on_change=setup._changed)

    watch.read()

    assert setup.changes == 1
    watch.stop()
    watch.run_events()  # returns
