"""Throttling of log lines about lasting failures."""

from tensorfusion_dra.runtime.loops import LogThrottle


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_same_text_is_new_again_after_ten_minutes() -> None:
    clock = Clock()
    throttle = LogThrottle(clock=clock)
    logged_at = []

    for clock.now in range(0, 3600, 30):
        if throttle.is_new("Connection refused"):
            logged_at.append(clock.now)

    assert logged_at == [0, 600, 1200, 1800, 2400, 3000]


def test_different_text_is_new_at_once() -> None:
    throttle = LogThrottle(clock=Clock())

    assert [throttle.is_new(text) for text in ("a", "a", "b", "a")] == [True, False, True, True]


def test_same_text_is_new_after_the_failure_is_over() -> None:
    throttle = LogThrottle(clock=Clock())
    throttle.is_new("a")

    assert throttle.over()
    assert not throttle.over()
    assert throttle.is_new("a")
