"""Calls in flight are counted, and the time without any is known."""

import math
from threading import Event, Thread

import pytest

from tensorfusion_dra.runtime.calls import CallsInFlight
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually


def never() -> bool:
    return False


def raise_key_error() -> None:
    raise KeyError("a")


def test_kubelet_is_quiet_from_the_end_of_the_last_of_several_calls() -> None:
    now = [10.0]
    calls = CallsInFlight(clock=lambda: now[0])
    before = calls.quiet_seconds()

    with calls:
        with calls:
            now[0] = 11.0
        during = calls.quiet_seconds()
        now[0] = 12.0
    now[0] = 15.0

    assert (before, during, calls.quiet_seconds()) == (math.inf, 0.0, 3.0)


def test_call_that_fails_is_no_longer_in_flight() -> None:
    calls = CallsInFlight()

    with pytest.raises(KeyError), calls:
        raise_key_error()

    assert calls.wait_none(seconds=FOREVER, until=never) == 0


def test_wait_ends_with_the_last_call() -> None:
    calls, end = CallsInFlight(), Event()
    left: list[int] = []

    def call() -> None:
        with calls:
            end.wait(PATIENCE_SECONDS)

    threads = [Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: calls.wait_none(seconds=0, until=never) == 2)
    waiting = Thread(target=lambda: left.append(calls.wait_none(seconds=FOREVER, until=never)))
    waiting.start()

    end.set()

    for thread in (*threads, waiting):
        thread.join(PATIENCE_SECONDS)
    assert left == [0]


def test_wait_that_is_called_off_returns_the_number_of_calls() -> None:
    calls = CallsInFlight()

    with calls, calls:
        assert calls.wait_none(seconds=FOREVER, until=lambda: True) == 2
