"""The publisher's own thread: what wakes it, and how it waits when it cannot write."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from tests.driver.test_publish import SLICE, Setup, cards
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
