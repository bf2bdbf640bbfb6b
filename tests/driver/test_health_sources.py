"""Health sources of other packages: what they report makes a card sick, by the driver's rules."""

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import Moment
from tensorfusion_dra.driver.catalog import CardHealthTracker, CardWatch, DeviceCatalog
from tensorfusion_dra.driver.providers import Kind, Providers
from tensorfusion_dra.extend import Gpu, Problem
from tests.driver.test_cards import RecordsInMemory
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpus
from tests.support.ports import FixedDiscovery
from tests.support.third_party import registered
from tests.support.waiting import FOREVER, PATIENCE_SECONDS

A, B = gpus(2)
FAN = Problem(reason="fan-stopped", text="fan 2 stands still")


class Fans:
    """Source whose problems a test sets."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        self.answer: Any = None
        self.wake: Callable[[], None] | None = None

    def listen(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def __call__(self, gpu: Gpu) -> Sequence[Problem]:
        if self.answer is not None:
            return self.answer  # type: ignore[no-any-return]
        return [FAN] if gpu.uuid in self.stopped else []


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> Moment:
        return Moment(self.seconds, datetime(2026, 1, 1, tzinfo=UTC))


class Node:
    """A node with two cards and one health source."""

    def __init__(self, records: RecordsInMemory | None = None) -> None:
        self.fans = Fans()
        self.clock = Clock()
        self.discovery = FixedDiscovery(Inventory(gpus=(A, B)))
        self.catalog = DeviceCatalog(
            self.discovery,
            NODE,
            providers=Providers(
                [registered(self.fans, "fans", Kind.HEALTH)], budget_seconds=FOREVER
            ),
            tracker=CardHealthTracker(records=records, clock=self.clock),
        )

    def read(self, *, after_seconds: float = 0.0) -> dict[str, str]:
        """Read the cards; return the reasons of the sick ones."""
        self.clock.seconds += after_seconds
        self.catalog.refresh()
        return {name: each.worst.reason for name, each in self.catalog.sick().items()}


def test_problem_makes_its_card_unhealthy_with_a_taint() -> None:
    node = Node()
    node.fans.stopped = {A.uuid}

    assert node.read() == {A.uuid.lower(): "fan-stopped"}

    catalog = node.catalog.current()
    assert catalog is not None
    sick, well = catalog.devices
    assert sick.taint is not None
    assert (sick.taint.key, sick.taint.value) == (names.TAINT_UNHEALTHY, "fan-stopped")
    assert sick.attributes["phase"] == "Unknown"
    assert catalog.sick[A.uuid.lower()].worst.text == "fans: fan 2 stands still"
    assert well.taint is None


def test_card_is_healthy_again_after_the_quiet_time_as_for_the_drivers_own_troubles() -> None:
    node = Node()
    node.fans.stopped = {A.uuid}
    node.read()
    node.fans.stopped = set()

    sick = [bool(node.read(after_seconds=50)) for _ in range(4)]

    assert sick == [True, True, False, False]


def test_failing_source_does_not_heal_what_it_reported_before_a_restart() -> None:
    """The last good answers are in memory only; the card's record is on disk."""
    records = RecordsInMemory()
    before = Node(records)
    before.fans.stopped = {A.uuid}
    before.read()
    node = Node(records)
    node.fans.answer = 7

    failing = [node.read(after_seconds=100) for _ in range(5)]
    node.fans.answer = None
    answering = [node.read(after_seconds=100) for _ in range(3)]

    assert failing == [{A.uuid.lower(): "fan-stopped"}] * 5
    assert answering == [{A.uuid.lower(): "fan-stopped"}] * 2 + [{}]


def test_source_that_learns_of_a_change_has_the_cards_read_at_once() -> None:
    node = Node()
    first, changed = threading.Event(), threading.Event()

    def on_change() -> None:
        (changed if first.is_set() else first).set()

    watch = CardWatch(node.catalog, None, poll_seconds=FOREVER, on_change=on_change)
    loop = threading.Thread(target=watch.run)
    loop.start()
    try:
        assert first.wait(PATIENCE_SECONDS)
        assert node.fans.wake is not None
        node.fans.stopped = {A.uuid}

        node.fans.wake()

        assert changed.wait(PATIENCE_SECONDS)
        assert node.catalog.sick().keys() == {A.uuid.lower()}
    finally:
        watch.stop()
        loop.join(PATIENCE_SECONDS)
