"""The publisher's own thread: what wakes it, and how it waits when it cannot write."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver import publish, wakeup
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tensorfusion_dra.driver.repairs import Repairs
from tests.driver.test_publish import SLICE, Setup, cards
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import PATIENCE_SECONDS, eventually


@contextmanager
def running(setup: Setup) -> Iterator[None]:
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


def test_a_wake_brings_a_deleted_slice_back_at_once() -> None:
    setup = Setup()
    with running(setup):
        assert eventually(lambda: SLICE in setup.slices.items)
        setup.slices.items.clear()

        setup.publisher.wake()

        assert eventually(lambda: SLICE in setup.slices.items)


def test_an_api_server_that_is_away_is_asked_again_until_it_answers() -> None:
    setup = Setup()
    setup.slices.away = True
    with running(setup):
        assert not eventually(lambda: bool(setup.slices.items), seconds=0.5)

        setup.slices.away = False

        assert eventually(lambda: SLICE in setup.slices.items)


def test_cards_that_appear_later_are_published() -> None:
    setup = Setup()
    setup.discovery.inventory = None
    with running(setup):
        assert not eventually(lambda: bool(setup.slices.items), seconds=0.2)
        setup.discovery.inventory = cards()
        setup.catalog.refresh()

        setup.publisher.wake()

        assert eventually(lambda: SLICE in setup.slices.items)


def test_while_a_newer_instance_publishes_nothing_is_read_or_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "_RIGHT_SECONDS", 0.02)
    setup = Setup()
    with running(setup), capture_logs() as logs:
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


def test_the_right_is_taken_only_once_there_is_something_to_publish() -> None:
    setup = Setup()
    setup.discovery.inventory = None
    with running(setup):
        assert not eventually(lambda: setup.right.taken > 0, seconds=0.2)
        setup.slices.away = True
        setup.discovery.inventory = cards()
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
def test_an_outage_of_six_hours_costs_few_requests_and_one_line(
    monkeypatch: pytest.MonkeyPatch, error: RetryableError, least_seconds: float
) -> None:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(wakeup, "Event", virtual.event)
    setup = Setup()
    setup.catalog.refresh()
    asked = []

    def fetch() -> list[Slice]:
        asked.append(virtual.seconds)
        raise error

    monkeypatch.setattr(setup.slices, "fetch", fetch)

    with capture_logs() as logs:
        setup.publisher.run()

    assert len(asked) <= 6 * 3600 / least_seconds + 10
    assert [line["error"] for line in logs if "error" in line] == [str(error)]
    assert setup.right.released


class OtherWriter:
    """Changes the node's slice whenever it was published, under a name of its own."""

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


def test_a_second_writer_is_answered_once_a_minute_and_named_once(
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


def test_a_contest_whose_event_was_not_written_is_told_with_the_next_repair(
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


def test_a_change_of_our_own_is_written_at_once_in_the_middle_of_a_contest() -> None:
    setup = Setup(repairs=Repairs(clock=lambda: 1000.0))
    setup.publish()
    OtherWriter(setup, manager="other")
    setup.slices.items.clear()
    setup.publish()
    setup.publish()
    assert len(setup.slices.writes) == 2  # the second repair waits

    setup.discovery.inventory = cards("3xA100-SXM4-80GB")
    setup.publish()

    assert len(setup.slices.writes) == 3


def test_slices_that_were_left_alone_for_long_are_repaired_at_once_again() -> None:
    now = [0.0]
    setup = Setup(repairs=Repairs(clock=lambda: now[0]))
    setup.publish()
    for _ in range(3):
        now[0] += 700
        setup.slices.items.clear()
        setup.publish()

    assert len(setup.slices.writes) == 4
    assert setup.events.written == []
