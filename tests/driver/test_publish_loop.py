"""The publisher's own thread: what wakes it, and how it waits when it cannot write."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.slices import Slice
from tensorfusion_dra.driver import publish
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tests.driver.test_publish import SLICE, Setup, cards
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import eventually


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
        thread.join(5)
    assert not thread.is_alive()


def test_a_wake_brings_a_deleted_slice_back_at_once() -> None:
    setup = Setup()
    with running(setup):
        assert eventually(lambda: SLICE in setup.slices.items)
        setup.slices.items.clear()
        started = time.monotonic()

        setup.publisher.wake()

        assert eventually(lambda: SLICE in setup.slices.items)
        assert time.monotonic() - started < 2


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
    monkeypatch.setattr(publish, "Event", virtual.event)
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
