"""What fails for hours is said now and then."""

from tensorfusion_dra.driver.log_throttle import LogThrottle


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_same_is_said_again_only_after_ten_minutes() -> None:
    clock = Clock()
    throttle = LogThrottle(clock=clock)
    said = []

    for clock.now in range(0, 3600, 30):
        if throttle.is_new("Connection refused"):
            said.append(clock.now)

    assert said == [0, 600, 1200, 1800, 2400, 3000]


def test_something_else_is_said_at_once() -> None:
    throttle = LogThrottle(clock=Clock())

    assert [throttle.is_new(text) for text in ("a", "a", "b", "a")] == [True, False, True, True]


def test_after_it_was_over_it_is_said_again() -> None:
    throttle = LogThrottle(clock=Clock())
    throttle.is_new("a")

    assert throttle.over()
    assert not throttle.over()
    assert throttle.is_new("a")
