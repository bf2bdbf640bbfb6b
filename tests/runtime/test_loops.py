"""Loops: growing delays, bounded logs."""

import pytest

from tensorfusion_dra.core.errors import ClaimError, FatalError, RetryableError
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle
from tests.support.logs import capture_logs


def test_delays_double_up_to_the_longest_and_restart_after_a_success() -> None:
    backoff = Backoff(first_seconds=1, longest_seconds=8)

    for most in (1, 2, 4, 8, 8, 8):
        assert most / 2 <= backoff.failed() <= most
    backoff.succeeded()
    assert backoff.failed() <= 1
    assert max(backoff.failed() for _ in range(5000)) <= 8  # failures for days do not overflow


def test_delay_is_at_least_the_one_that_the_server_requests() -> None:
    backoff = Backoff(first_seconds=0.1, longest_seconds=30)

    delays = {backoff.failed(at_least=20) for _ in range(50)}

    assert 20 <= min(delays) < max(delays) <= 30


def test_same_text_is_new_again_after_ten_minutes() -> None:
    now = 0
    throttle = LogThrottle(clock=lambda: now)
    logged_at = []

    for now in range(0, 3600, 30):
        if throttle.is_new("Connection refused"):
            logged_at.append(now)

    assert logged_at == [0, 600, 1200, 1800, 2400, 3000]


def test_different_text_is_new_at_once_and_the_same_after_the_failure_is_over() -> None:
    throttle = LogThrottle()

    assert [throttle.is_new(text) for text in ("a", "a", "b", "a")] == [True, False, True, True]
    assert [throttle.over(), throttle.over()] == [True, False]
    assert throttle.is_new("a")


def test_an_error_is_logged_once_until_a_block_without_one_and_only_if_it_can_be_retried() -> None:
    throttle = LogThrottle()

    with capture_logs() as logs:
        for error in (RetryableError("a"), RetryableError("a"), None, ClaimError("a")):
            with throttle.warning("retried", pod="b"):
                if error:
                    raise error
        with pytest.raises(FatalError), throttle.warning("retried"):
            raise FatalError("c")

    line = {"event": "retried", "pod": "b", "error": "a", "log_level": "warning"}
    assert logs == [line, line]
