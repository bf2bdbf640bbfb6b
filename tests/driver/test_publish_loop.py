"""The publisher's thread: its wake-ups, and its delays after failures."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver import publish
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tensorfusion_dra.driver.publish import Repairs
from tensorfusion_dra.runtime import wakeup
from tests.driver.test_publish import SLICE, Setup
from tests.support.prepared_node import simulated_inventory
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import PATIENCE_SECONDS, eventually


@contextmanager
def running_publisher(setup: Setup) -> Iterator[None]:
    if setup.discovery.inventory is not None:
        setup.catalog.refresh()
    thread = Thread(target=setup.publisher.run)
    thread.start()
    try:
        yield
    finally:
        setup.publisher.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_wake_creates_a_deleted_slice_at_once() -> None:
    setup = Setup()
    with running_publisher(setup):
        assert eventually(lambda: SLICE in setup.slices.items)
        setup.slices.items.clear()

        setup.publisher.wake()

        assert eventually(lambda: SLICE in setup.slices.items)


def test_publication_is_retried_until_the_api_server_answers() -> None:
    setup = Setup()
    setup.slices.away = True
    with running_publisher(setup):
        assert not eventually(lambda: bool(setup.slices.items), seconds=0.5)

        setup.slices.away = False

        assert eventually(lambda: SLICE in setup.slices.items)


def test_nothing_is_read_or_written_while_a_newer_instance_publishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "_RIGHT_SECONDS", 0.02)
    setup = Setup()
    with running_publisher(setup), capture_logs() as logs:
        assert eventually(lambda: SLICE in setup.slices.items)
        setup.right.newer = True
        setup.slices.items.clear()

        setup.publisher.wake()
        assert not eventually(lambda: bool(setup.slices.items), seconds=0.3)
        setup.right.newer = False

        assert eventually(lambda: SLICE in setup.slices.items)
    assert [line["event"] for line in logs if line["event"].startswith("publishing")] == [
        "publishing_left_to_newer_instance",
        "publishing_resumed",
    ]
    assert setup.right.released


def test_publishing_right_is_taken_only_if_there_is_something_to_publish() -> None:
    setup = Setup()
    setup.discovery.inventory = None
    with running_publisher(setup):
        assert not eventually(lambda: setup.right.taken > 0, seconds=0.2)
        setup.slices.away = True
        setup.discovery.inventory = simulated_inventory()
        setup.catalog.refresh()
        setup.publisher.wake()
        assert not eventually(lambda: setup.right.taken > 0, seconds=0.2)
        setup.slices.away = False
        setup.publisher.wake()

        assert eventually(lambda: setup.right.taken > 0)


@pytest.mark.parametrize(
    ("error", "least_seconds"),
    [
        (RetryableError("no answer within the time"), 15),
        (MissingRightError("403: no right", "update on resourceslices"), 60),
        (RetryableError("429: slow down", after_seconds=40), 40),
    ],
)
def test_six_hour_outage_costs_few_requests_and_one_log_line(
    monkeypatch: pytest.MonkeyPatch, error: RetryableError, least_seconds: float
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(wakeup, "Event", virtual.event)
    setup = Setup()
    setup.catalog.refresh()
    fetches = []

    def fetch() -> list[Slice]:
        fetches.append(virtual.seconds)
        raise error

    monkeypatch.setattr(setup.slices, "fetch", fetch)

    with capture_logs() as logs:
        setup.publisher.run()

    assert len(fetches) <= 6 * 3600 / least_seconds + 10
    assert [line["error"] for line in logs if "error" in line] == [str(error)]
    assert setup.right.released


class OtherWriter:
    """Writer that changes the node's slice after each publication, under its own manager name."""

    def __init__(self, setup: Setup, *, manager: str) -> None:
        self._setup = setup
        self._manager = manager
        self._replace, self._create = setup.slices.replace, setup.slices.create
        setup.slices.replace = self.replace  # type: ignore[method-assign]
        setup.slices.create = self.create  # type: ignore[method-assign]

    def replace(self, item: Slice, *, trial: bool = False) -> Slice:
        return self._changed(self._replace(item, trial=trial))

    def create(self, item: Slice, *, trial: bool = False) -> Slice:
        return self._changed(self._create(item, trial=trial))

    def _changed(self, stored: Slice) -> Slice:
        changed: Any = copy.deepcopy(dict(stored))
        changed["metadata"]["labels"] = {}
        changed["metadata"]["managedFields"] = [
            {"manager": "tensorfusion-dra", "time": "2026-03-01T00:00:00Z"},
            {"manager": self._manager, "time": "2026-03-01T00:00:01Z"},
        ]
        self._setup.slices.items[SLICE] = changed
        self._setup.publisher.slices_changed()
        return stored


def test_changes_of_another_writer_are_undone_once_a_minute_and_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(wakeup, "Event", virtual.event)
    setup = Setup(repairs=Repairs(clock=lambda: virtual.seconds))
    setup.catalog.refresh()
    OtherWriter(setup, manager="kubectl\n-edit")

    with capture_logs() as logs:
        setup.publisher.run()

    assert 6 * 60 <= len(setup.slices.writes) <= 6 * 3600 / 30 + 10
    (line,) = [line for line in logs if line["event"] == "slices_contested"]
    assert line["writers"] == "kubectl\n-edit"
    ((reason, text),) = setup.events.written
    assert reason == "ResourceSlicesContested"
    assert "found them written by kubectl\n-edit again and again" in text


def test_failed_event_about_another_writer_is_repeated_with_the_next_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual = VirtualTime(hours=1)
    monkeypatch.setattr(wakeup, "Event", virtual.event)
    setup = Setup(repairs=Repairs(clock=lambda: virtual.seconds))
    setup.catalog.refresh()
    OtherWriter(setup, manager="other")
    warn, tries = setup.events.warn, []

    def failing_at_first(reason: str, message: str) -> bool:
        tries.append(reason)
        setup.events.away = len(tries) < 3
        return warn(reason, message)

    monkeypatch.setattr(setup.events, "warn", failing_at_first)

    setup.publisher.run()

    assert len(tries) == 3
    assert len(setup.events.written) == 1


def test_own_change_is_written_at_once_while_another_writer_interferes() -> None:
    setup = Setup(repairs=Repairs(clock=lambda: 1000.0))
    setup.publish()
    OtherWriter(setup, manager="other")
    setup.slices.items.clear()
    setup.publish()
    setup.publish()
    assert len(setup.slices.writes) == 2  # the second repair waits

    setup.discovery.inventory = simulated_inventory("3xA100-SXM4-80GB")
    setup.publish()

    assert len(setup.slices.writes) == 3


def test_slices_unchanged_for_long_are_repaired_at_once_again() -> None:
    now = [0.0]
    setup = Setup(repairs=Repairs(clock=lambda: now[0]))
    setup.publish()
    for _ in range(3):
        now[0] += 700
        setup.slices.items.clear()
        setup.publish()

    assert len(setup.slices.writes) == 4
    assert setup.events.written == []
