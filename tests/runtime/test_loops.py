"""Loops: growing delays, bounded logs."""

from tensorfusion_dra.runtime.loops import Backoff, LogThrottle


def test_delays_double_up_to_the_longest_and_restart_after_a_success() -> None:
    backoff = Backoff(first_seconds=1, longest_seconds=8)

    delays = [backoff.failed() for _ in range(6)]
    backoff.succeeded()

    for delay, most in zip(delays, (1, 2, 4, 8, 8, 8), strict=True):
        assert most / 2 <= delay <= most
    assert backoff.failed() <= 1
    assert max(backoff.failed() for _ in range(5000)) <= 8  # failures for days do not overflow


def test_delay_is_at_least_the_one_that_the_server_requests() -> None:
    backoff = Backoff(first_seconds=0.1, longest_seconds=30)

    delays = [backoff.failed(at_least=20) for _ in range(50)]

    assert min(delays) >= 20
    assert max(delays) <= 30
    assert len(set(delays)) > 1


def test_same_text_is_new_again_after_ten_minutes() -> None:
    now = 0
    throttle = LogThrottle(clock=lambda: now)
    logged_at = []

    for now in range(0, 3600, 30):
        if throttle.is_new("Connection refused"):
            logged_at.append(now)

    assert logged_at == [0, 600, 1200, 1800, 2400, 3000]


def test_different_text_is_new_at_once() -> None:
    throttle = LogThrottle()

    assert [throttle.is_new(text) for text in ("a", "a", "b", "a")] == [True, False, True, True]


def test_same_text_is_new_after_the_failure_is_over() -> None:
    throttle = LogThrottle()
    throttle.is_new("a")

    assert throttle.over()
    assert not throttle.over()
    assert throttle.is_new("a")
