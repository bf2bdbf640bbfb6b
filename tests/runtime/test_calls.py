"""Calls in flight are counted, and the time without any is known."""

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tensorfusion_dra.runtime.calls import CallsInFlight
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually


def never() -> bool:
    return False


def test_kubelet_is_quiet_from_the_end_of_the_last_of_several_calls() -> None:
    now = 10.0
    calls = CallsInFlight(clock=lambda: now)
    seen = [calls.quiet_seconds()]

    with calls:
        with calls:
            now = 11.0
        seen.append(calls.quiet_seconds())
        now = 12.0
    now = 15.0

    assert [*seen, calls.quiet_seconds()] == [math.inf, 0.0, 3.0]


def test_call_that_fails_is_no_longer_in_flight() -> None:
    calls = CallsInFlight()

    with pytest.raises(ValueError, match="'a'"), calls:
        int("a")

    assert calls.wait_none(seconds=FOREVER, until=never) == 0


def test_wait_ends_with_the_last_call() -> None:
    calls, end = CallsInFlight(), Event()

    def call() -> None:
        with calls:
            end.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            pool.submit(call)
        assert eventually(lambda: calls.wait_none(seconds=0, until=never) == 2)
        left = pool.submit(calls.wait_none, seconds=FOREVER, until=never)

        end.set()

        assert left.result(PATIENCE_SECONDS) == 0


def test_wait_that_is_called_off_returns_the_number_of_calls() -> None:
    calls = CallsInFlight()

    with calls, calls:
        assert calls.wait_none(seconds=FOREVER, until=lambda: True) == 2
