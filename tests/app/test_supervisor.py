"""The process lives as long as all of its parts."""

import signal
import sys
from collections.abc import Callable, Iterator
from threading import Event

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.app.supervisor import Supervisor
from tensorfusion_dra.core.errors import FatalError


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    found = Supervisor()
    yield found
    found.stopping.set()
    found.join(seconds=5)


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def until(event: Event) -> Callable[[], None]:
    def part() -> None:
        event.wait()

    return part


def test_a_part_that_dies_stops_all_others_and_is_the_reason(supervisor: Supervisor) -> None:
    error = FatalError("ledger: damaged")

    def dies() -> None:
        raise error

    with capture_logs() as logs:
        supervisor.run("lives", until(supervisor.stopping))
        supervisor.run("dies", dies)

        assert supervisor.wait() is error

    assert supervisor.stopping.is_set()
    (line,) = logs
    assert (line["event"], line["part"]) == ("part_failed", "dies")
    assert "ledger: damaged" in line["error"]


def test_a_part_that_ends_by_itself_is_dead_too(supervisor: Supervisor) -> None:
    supervisor.run("publish", lambda: None)

    cause = supervisor.wait()

    assert isinstance(cause, RuntimeError)
    assert str(cause) == "publish ended by itself"


def test_a_part_that_ends_the_interpreter_is_dead_too(supervisor: Supervisor) -> None:
    with capture_logs():
        supervisor.run("publish", sys.exit)

        assert isinstance(supervisor.wait(), SystemExit)


def test_a_part_that_ends_when_it_should_is_no_reason(supervisor: Supervisor) -> None:
    ended = Event()

    def part() -> None:
        supervisor.stopping.wait()
        ended.set()

    supervisor.run("publish", part)
    supervisor.stopping.set()

    assert ended.wait(5)
    supervisor.join(seconds=5)
    assert supervisor.wait() is None


def test_the_first_reason_counts(supervisor: Supervisor) -> None:
    first, second = FatalError("first"), FatalError("second")

    supervisor.fail(first)
    supervisor.fail(second)

    assert supervisor.wait() is first


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order_and_without_a_reason(
    supervisor: Supervisor, number: signal.Signals
) -> None:
    supervisor.stop_on_signals()

    with capture_logs() as logs:
        signal.raise_signal(number)
        cause = supervisor.wait()

    assert cause is None
    assert [(line["event"], line["signal"]) for line in logs] == [("stop_requested", number.name)]


def test_nothing_stops_before_there_is_a_reason(supervisor: Supervisor) -> None:
    supervisor.run("publish", until(supervisor.stopping))

    assert not supervisor.stopping.is_set()


def test_a_part_that_does_not_end_is_left_behind_with_a_word(supervisor: Supervisor) -> None:
    stuck = Event()
    supervisor.run("stuck", until(stuck))
    supervisor.stopping.set()

    with capture_logs() as logs:
        supervisor.join(seconds=0.01)
    stuck.set()

    assert [(line["event"], line["error"]) for line in logs] == [
        ("thread_left_behind", "stuck still runs")
    ]
