"""What the driver remembers of its cards, and what it makes of readings that fail."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind, HealthRules, Moment
from tensorfusion_dra.core.devices.known_cards import PublishedCards
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.card_health_tracker import CardHealthTracker
from tensorfusion_dra.driver.ports.discovery import HungError
from tensorfusion_dra.state.card_records import CardRecords
from tests.support.gpus import cards
from tests.support.status_claims import claim, share

A, B = cards(2)
BOTH = Inventory(gpus=(A, B))
XID_79 = CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=79)


class RecordsInMemory(CardRecords):
    """A record that outlives the memory, unless the disk is full."""

    def __init__(self, record: Mapping[str, Any] | None = None, boot_id: str = "boot-1") -> None:
        self.boot_id = boot_id
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
    """A memory, and what it stands on; restarted() gives the next one."""

    def __init__(self, records: RecordsInMemory | None = None, *, held: str = "") -> None:
        self.seconds = 0.0
        self.records = records or RecordsInMemory()
        self.held = held
        self.tracker = CardHealthTracker(
            HealthRules(), records=self.records, claims=self.claims, clock=self.now
        )

    def now(self) -> Moment:
        return Moment(self.seconds, datetime(2026, 3, 1, tzinfo=UTC))

    def claims(self) -> list[PreparedClaim]:
        if self.held == "?":
            raise RetryableError("ledger: locked")
        return [claim("a", replace(share(), device=self.held))] if self.held else []

    def restarted(self) -> "Setup":
        return Setup(self.records, held=self.held)

    def visible(self) -> PublishedCards:
        found = self.tracker.visible()
        assert found is not None
        return found

    def reasons(self) -> list[str]:
        return sorted(sick.worst.reason for sick in self.visible().sick.values())


def test_nothing_is_visible_before_the_first_reading() -> None:
    setup = Setup()

    setup.tracker.failed(RetryableError("no driver"))

    assert setup.tracker.visible() is None


def test_readings_that_bring_nothing_new_write_nothing() -> None:
    setup = Setup()
    for _ in range(5):
        setup.tracker.read(BOTH)

    assert setup.records.saves == 1


def test_a_storm_of_one_error_is_recorded_and_logged_once() -> None:
    setup = Setup()
    setup.tracker.read(BOTH)

    with capture_logs() as logs:
        counted = [setup.tracker.reported(XID_79) for _ in range(5)]

    assert all(counted)
    assert len(logs) == 1
    assert setup.records.saves == 2
    assert setup.reasons() == ["xid-79"]


def test_a_restart_remembers_who_is_sick() -> None:
    setup = Setup()
    setup.tracker.read(BOTH)
    setup.tracker.reported(XID_79)

    after = setup.restarted()
    after.tracker.read(BOTH)

    assert after.visible().sick == setup.visible().sick
    assert after.records.saves == 2


@pytest.mark.parametrize(
    "event",
    [
        CardEvent(gpu_uuid=None, kind=EventKind.UNAVAILABLE),
        CardEvent(gpu_uuid="GPU-unknown", kind=EventKind.XID, code=79),
        CardEvent(gpu_uuid=A.uuid, kind=EventKind.XID, code=13),
    ],
)
def test_what_counts_against_no_known_card_changes_nothing(event: CardEvent) -> None:
    setup = Setup()
    setup.tracker.read(BOTH)

    assert not setup.tracker.reported(event)
    assert setup.reasons() == []


def test_a_driver_that_hangs_is_named_and_one_that_is_away_too() -> None:
    hung, away = Setup(), Setup()
    for setup in (hung, away):
        setup.tracker.read(BOTH)
    for _ in range(2):
        hung.tracker.failed(HungError("asked 3 s ago", "uuid of GPU 1"))
        away.tracker.failed(RetryableError("NVML: not loaded"))

    assert hung.reasons() == ["nvml-hung", "nvml-hung"]
    assert away.reasons() == ["unreadable", "unreadable"]
    assert hung.visible().inventory == BOTH


def test_after_a_restart_without_a_driver_the_cards_are_shown_as_they_were() -> None:
    setup = Setup()
    setup.tracker.read(BOTH)
    after = setup.restarted()

    after.tracker.failed(RetryableError("no driver"))
    early = after.tracker.visible()
    after.tracker.failed(RetryableError("no driver"))

    assert early is None
    assert after.visible().inventory.gpus == (A, B)
    assert after.reasons() == ["unreadable", "unreadable"]


def test_a_ledger_that_is_locked_for_a_moment_hides_no_card() -> None:
    setup = Setup(held=A.uuid.lower())
    setup.tracker.read(BOTH)
    setup.tracker.read(Inventory(gpus=(B,)))
    assert setup.visible().inventory.gpus == (A, B)

    setup.held = "?"

    assert setup.visible().inventory.gpus == (A, B)


def test_a_disk_that_is_full_costs_only_the_record() -> None:
    setup = Setup()
    setup.records.full = True
    with capture_logs() as logs:
        setup.tracker.read(BOTH)
    setup.records.full = False

    setup.tracker.read(BOTH)

    assert [line["event"] for line in logs] == ["card_record_failed"]
    assert setup.records.saves == 1


def test_a_record_of_another_kind_is_put_aside_with_a_line() -> None:
    with capture_logs() as logs:
        setup = Setup(RecordsInMemory({"version": 9}))
    setup.tracker.read(BOTH)

    assert [line["event"] for line in logs] == ["card_record_unusable"]
    assert setup.visible().inventory == BOTH
