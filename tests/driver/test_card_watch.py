"""The loop that reads the cards: its pace, its triggers and its callbacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.driver import catalog
from tensorfusion_dra.driver.catalog import CardWatch, DeviceCatalog
from tensorfusion_dra.driver.ports import HungError
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpus
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

A, B = gpus(2)


class CountingDiscovery:
    """Discovery that counts its readings and raises an error set by a test."""

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
    """Event source that passes on the events of a test."""

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
        self.catalog = DeviceCatalog(self.discovery, NODE)
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


def xid_event(code: int) -> CardEvent:
    return CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=code)


def test_reported_error_takes_effect_at_once_and_the_cards_are_read_again() -> None:
    setup = Setup()
    with setup.running() as report:
        report(xid_event(79))

        assert setup.changes == 2
        assert list(setup.catalog.sick()) == [A.uuid.lower()]
        assert eventually(lambda: setup.discovery.reads == 2)
        assert eventually(lambda: setup.events.watched == {B.uuid})


def test_many_reports_cause_one_reading_per_shortest_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog, "_LEAST_SECONDS", FOREVER)
    setup = Setup(poll_seconds=FOREVER)
    with setup.running() as report:
        for _ in range(10_000):
            report(xid_event(13))

        assert setup.discovery.reads == 1
        assert setup.changes == 1


def test_hanging_call_is_logged_once_for_any_age() -> None:
    setup = Setup()
    with capture_logs() as logs:
        for age in range(3):
            setup.discovery.error = HungError(f"asked {age} s ago", "uuid of GPU 1")
            setup.watch.read()

    assert [line["event"] for line in logs] == ["gpus_awaited"]


def test_replaced_driver_ends_the_loop() -> None:
    setup = Setup()
    setup.discovery.error = FatalError("replaced")

    with pytest.raises(FatalError, match="replaced"):
        setup.watch.run()
