"""What fails for hours is said now and then."""

from tensorfusion_dra.driver.repeats import Repeats


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_same_is_said_again_only_after_ten_minutes() -> None:
    clock = Clock()
    repeats = Repeats(clock=clock)
    said = []

    for clock.now in range(0, 3600, 30):
        if repeats.is_new("Connection refused"):
            said.append(clock.now)

    assert said == [0, 600, 1200, 1800, 2400, 3000]


def test_something_else_is_said_at_once() -> None:
    repeats = Repeats(clock=Clock())

    assert [repeats.is_new(text) for text in ("a", "a", "b", "a")] == [True, False, True, True]


def test_after_it_was_over_it_is_said_again() -> None:
    repeats = Repeats(clock=Clock())
    repeats.is_new("a")

    assert repeats.over()
    assert not repeats.over()
    assert repeats.is_new("a")
