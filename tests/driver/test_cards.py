"""The node's cards: readings, events and the health that is remembered."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.capacity import NO_MORE
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import (
    CardEvent,
    EventKind,
    HealthRules,
    Moment,
    PublishedCards,
)
from tensorfusion_dra.core.errors import FatalError, HungError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.driver import publish
from tensorfusion_dra.driver.card_health import CardHealthTracker
from tensorfusion_dra.driver.providers import ProviderKind, Providers, Registered
from tensorfusion_dra.driver.publish import DeviceCatalog
from tensorfusion_dra.extend import Gpu, Problem
from tensorfusion_dra.runtime.loops import Wakeup
from tensorfusion_dra.state.saved_state import SavedState
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpus
from tests.support.builders.reported_claims import reported_claim, reported_share
from tests.support.ports import FixedDiscovery
from tests.support.third_party import registered
from tests.support.threads import running
from tests.support.waiting import FOREVER, eventually

A, B = gpus(2)


BOTH = Inventory(gpus=(A, B))


XID_79 = CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=79)


class RecordsInMemory(SavedState):
    """Card record on a disk, which a test can fill up."""

    def __init__(self, record: Mapping[str, Any] | None = None) -> None:
        self.record = record
        self.saves = 0
        self.full = False

    def load(self) -> Mapping[str, Any] | None:
        return self.record

    def save(self, record: Mapping[str, Any]) -> None:
        if self.full:
            raise RetryableError("no space left")
        self.saves += 1
        self.record = record


class Setup:
    """A tracker with its record; restarted() returns a new one with the same record.

    Attributes:
        claimed: The device with a prepared claim, `?` if the store is locked, or empty.
    """

    def __init__(self, records: RecordsInMemory | None = None, *, claimed: str = "") -> None:
        self.seconds = 0.0
        self.records = records or RecordsInMemory()
        self.claimed = claimed
        self.tracker = CardHealthTracker(
            HealthRules(), records=self.records, claims=self.claims, clock=self.now
        )

    def now(self) -> Moment:
        return Moment(self.seconds, datetime(2026, 3, 1, tzinfo=UTC))

    def claims(self) -> list[PreparedClaim]:
        if self.claimed == "?":
            raise RetryableError("store: locked")
        if not self.claimed:
            return []
        return [reported_claim("a", reported_share(device=self.claimed))]

    def restarted(self) -> "Setup":
        return Setup(self.records, claimed=self.claimed)

    def visible(self) -> PublishedCards:
        found = self.tracker.visible()
        assert found is not None
        return found

    def reasons(self) -> list[str]:
        return sorted(sick.worst.reason for sick in self.visible().unhealthy.values())


def test_repeated_error_is_recorded_and_logged_once() -> None:
    setup = Setup()
    setup.tracker.record_reading(BOTH, {})

    with capture_logs() as logs:
        counted = [setup.tracker.on_event(XID_79) for _ in range(5)]

    assert all(counted)
    assert len(logs) == 1
    assert setup.records.saves == 2
    assert setup.reasons() == ["xid-79"]


@pytest.mark.parametrize(
    "event",
    [
        CardEvent(gpu_uuid=None, kind=EventKind.UNAVAILABLE),
        CardEvent(gpu_uuid="GPU-unknown", kind=EventKind.XID, code=79),
        CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=13),
    ],
)
def test_event_that_affects_no_known_card_changes_nothing(event: CardEvent) -> None:
    setup = Setup()
    setup.tracker.record_reading(BOTH, {})

    assert not setup.tracker.on_event(event)
    assert setup.reasons() == []


def test_cards_are_visible_as_recorded_after_a_restart_without_a_driver() -> None:
    setup = Setup()
    setup.tracker.record_reading(BOTH, {})
    after = setup.restarted()

    after.tracker.record_failure(RetryableError("no driver"))
    early = after.tracker.visible()
    after.tracker.record_failure(RetryableError("no driver"))

    assert early is None
    assert after.visible().inventory.gpus == (A, B)
    assert after.reasons() == ["unreadable", "unreadable"]


def test_locked_ledger_hides_no_card() -> None:
    setup = Setup(claimed=A.uuid.lower())
    setup.tracker.record_reading(BOTH, {})
    setup.tracker.record_reading(Inventory(gpus=(B,)), {})
    assert setup.visible().inventory.gpus == (A, B)

    setup.claimed = "?"

    assert setup.visible().inventory.gpus == (A, B)


def test_full_disk_affects_only_the_record() -> None:
    setup = Setup()
    setup.records.full = True
    with capture_logs() as logs:
        setup.tracker.record_reading(BOTH, {})
    setup.records.full = False

    setup.tracker.record_reading(BOTH, {})

    assert [line["event"] for line in logs] == ["card_record_write_failed"]
    assert setup.records.saves == 1


def test_unusable_record_is_ignored_with_a_log_line() -> None:
    with capture_logs() as logs:
        setup = Setup(RecordsInMemory({"version": 9}))
    setup.tracker.record_reading(BOTH, {})

    assert [line["event"] for line in logs] == ["card_record_unusable"]
    assert setup.visible().inventory == BOTH


TO_DISK = replace(NODE, oversubscription=replace(NO_MORE, host_disk_percent=50))


COMPUTE_ONLY = replace(NODE, oversubscription=replace(NO_MORE, tflops_percent=200))


class Sizes:
    """A disk whose size a test sets, None if it cannot be read, and no memory."""

    def __init__(self, *, disk_gib: int | None = None) -> None:
        self.disk_gib = disk_gib
        self.reads: list[str] = []

    def memory_bytes(self) -> int:
        self.reads.append("memory")
        return 0

    def disk_bytes(self) -> int:
        self.reads.append("disk")
        if self.disk_gib is None:
            raise RetryableError("disk: No such file or directory")
        return self.disk_gib * GIB


def catalog_reader(sizes: Sizes, node: Node | None) -> DeviceCatalog:
    cards = simulated_discovery.SimulatedDiscovery("1xA100-SXM4-80GB", node_name="node-01").read()
    return DeviceCatalog(FixedDiscovery(cards), node, host=sizes)


@pytest.mark.parametrize("node", [NODE, COMPUTE_ONLY])
def test_sizes_are_not_read_for_a_pool_without_memory_expansion(node: Node) -> None:
    sizes = Sizes()
    catalog = catalog_reader(sizes, node)

    catalog.refresh()

    current = catalog.current()
    assert current is not None
    assert (len(current.devices), current.host_size_errors, sizes.reads) == (1, (), [])


@pytest.mark.parametrize(
    ("before_gib", "now_gib", "virtual_vram", "error"),
    [
        pytest.param(None, None, "80Gi", "disk: No such file or directory", id="unknown"),
        pytest.param(None, 100, "130Gi", "", id="appears"),
        pytest.param(100, None, "130Gi", "disk: No such file or directory", id="unreadable now"),
    ],
)
def test_disk_expands_memory_by_its_last_known_size(
    before_gib: int | None, now_gib: int | None, virtual_vram: str, error: str
) -> None:
    sizes = Sizes(disk_gib=before_gib)
    catalog = catalog_reader(sizes, TO_DISK)

    with capture_logs() as logs:
        catalog.refresh()
        before = catalog.current()
        sizes.disk_gib = now_gib
        catalog.refresh()

    current = catalog.current()
    assert current is not None
    (device,) = current.devices
    assert device.capacity["virtual_vram"].as_api()["value"] == virtual_vram
    assert current.host_size_errors == ((error,) if error else ())
    assert (current is not before) is (before_gib != now_gib)
    assert [line["event"] for line in logs].count("expansion_size_unknown") == 1


def test_hanging_driver_has_another_reason_than_a_missing_one() -> None:
    setup = Setup()
    setup.tracker.record_reading(BOTH, {})
    for _ in range(2):
        setup.tracker.record_failure(HungError("asked 3 s ago", "uuid of GPU 1"))

    assert setup.reasons() == ["nvml-hung", "nvml-hung"]
    assert setup.visible().inventory == BOTH


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


class Watched:
    """A loop that reads the cards, from this object; `error` is raised by each reading."""

    def __init__(self, *sources: Registered) -> None:
        self.reads = 0
        self.error: Exception | None = None
        self.events = EventsOnDemand()
        self.changes = 0
        wakeup = Wakeup()
        self.catalog = DeviceCatalog(
            self,
            NODE,
            providers=Providers(sources, budget_seconds=FOREVER, wake=wakeup.wake),
            events=self.events,
            poll_seconds=FOREVER,
            wakeup=wakeup,
            on_change=self._changed,
        )

    def read(self) -> Inventory:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return BOTH

    def _changed(self) -> None:
        self.changes += 1

    @contextmanager
    def running(self) -> Iterator[Callable[[CardEvent], None]]:
        stop = self.catalog.stop
        events = partial(self.events.run, self.catalog.on_event)
        with running(self.catalog.run, stop=stop), running(events, stop=stop):
            assert eventually(lambda: self.changes == 1 and self.events.report is not None)
            assert self.events.report is not None
            yield self.events.report


def xid_event(code: int) -> CardEvent:
    return CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=code)


def test_reported_error_takes_effect_at_once_and_the_cards_are_read_again() -> None:
    setup = Watched()
    with setup.running() as report:
        report(xid_event(79))

        assert setup.changes == 2
        assert list(setup.catalog.unhealthy()) == [A.uuid.lower()]
        assert eventually(lambda: setup.reads == 2)
        assert eventually(lambda: setup.events.watched == {B.uuid})


def test_many_reports_cause_one_reading_per_shortest_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "_MIN_READING_SECONDS", FOREVER)
    setup = Watched()
    with setup.running() as report:
        for _ in range(10_000):
            report(xid_event(13))

        assert setup.reads == 1
        assert setup.changes == 1


def test_hanging_call_is_logged_once_for_any_age() -> None:
    setup = Watched()
    with capture_logs() as logs:
        for age in range(3):
            setup.error = HungError(f"asked {age} s ago", "uuid of GPU 1")
            setup.catalog.read()

    assert [line["event"] for line in logs] == ["gpus_awaited"]


def test_replaced_driver_ends_the_loop() -> None:
    setup = Watched()
    setup.error = FatalError("replaced")

    with pytest.raises(FatalError, match="replaced"):
        setup.catalog.run()


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


class NodeWithFans:
    """A node with two cards and one health source."""

    def __init__(self, records: RecordsInMemory | None = None) -> None:
        self.fans = Fans()
        self.seconds = 0.0
        self.discovery = FixedDiscovery(Inventory(gpus=(A, B)))
        self.catalog = DeviceCatalog(
            self.discovery,
            NODE,
            providers=Providers(
                [registered(self.fans, "fans", ProviderKind.HEALTH)], budget_seconds=FOREVER
            ),
            tracker=CardHealthTracker(records=records, clock=self.now),
        )

    def now(self) -> Moment:
        return Moment(self.seconds, datetime(2026, 1, 1, tzinfo=UTC))

    def read(self, *, after_seconds: float = 0.0) -> dict[str, str]:
        """Read the cards; return the reasons of the sick ones."""
        self.seconds += after_seconds
        self.catalog.refresh()
        return {name: each.worst.reason for name, each in self.catalog.unhealthy().items()}


def test_problem_makes_its_card_unhealthy_with_a_taint() -> None:
    node = NodeWithFans()
    node.fans.stopped = {A.uuid}

    assert node.read() == {A.uuid.lower(): "fan-stopped"}

    catalog = node.catalog.current()
    assert catalog is not None
    sick, well = catalog.devices
    assert [(each.key, each.value) for each in sick.taints] == [
        (names.TAINT_UNHEALTHY, "fan-stopped")
    ]
    assert sick.attributes["phase"] == "Unknown"
    assert catalog.unhealthy[A.uuid.lower()].worst.text == "fans: fan 2 stands still"
    assert well.taints == ()


def test_failing_source_does_not_heal_what_it_reported_before_a_restart() -> None:
    """The last good answers are in memory only; the card's record is on disk."""
    records = RecordsInMemory()
    before = NodeWithFans(records)
    before.fans.stopped = {A.uuid}
    before.read()
    node = NodeWithFans(records)
    node.fans.answer = 7

    failing = [node.read(after_seconds=100) for _ in range(5)]
    node.fans.answer = None
    answering = [node.read(after_seconds=100) for _ in range(3)]

    assert failing == [{A.uuid.lower(): "fan-stopped"}] * 5
    assert answering == [{A.uuid.lower(): "fan-stopped"}] * 2 + [{}]


def test_source_that_learns_of_a_change_has_the_cards_read_at_once() -> None:
    fans = Fans()
    setup = Watched(registered(fans, "fans", ProviderKind.HEALTH))
    with setup.running():
        assert fans.wake is not None
        fans.stopped = {A.uuid}

        fans.wake()

        assert eventually(lambda: setup.catalog.unhealthy().keys() == {A.uuid.lower()})
