"""Delays of a loop after failures."""

from tensorfusion_dra.runtime.loops import Backoff


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
