"""Statuses are written in idle moments, and at a bounded rate under permanent load."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver import status
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.runtime.calls_in_flight import CallsInFlight
from tests.support.builders.reported_claims import (
    reported_claim,
    reported_limit,
    reported_share,
)
from tests.support.virtual_time import VirtualTime


class CallsAt(CallsInFlight):
    """Calls of the kubelet at given virtual times.

    Attributes:
        times: Begin and end of each call, in the order of their ends.
    """

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time
        self.times: list[tuple[float, float]] = []

    def quiet_seconds(self) -> float:
        now = self._time.seconds
        if any(begin <= now < end for begin, end in self.times):
            return 0.0
        return now - max((end for _, end in self.times if end <= now), default=-3600.0)


class Node:
    """A reporter whose thread is the test's own.

    Attributes:
        writes: Claim name and virtual time of each write.
        error: Raised by each write.
        write_seconds: Time that a write takes.
    """

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.calls = CallsAt(time)
        self.reporter = StatusReporter(self, calls=self.calls, clock=lambda: time.seconds)
        self.writes: list[tuple[str, float]] = []
        self.error: Exception | None = None
        self.write_seconds = 0.0

    def write(self, ref: ClaimRef, _devices: Sequence[Mapping[str, Any]]) -> bool:
        self.writes.append((ref.name, self.time.seconds))
        self.time.passed(self.write_seconds)
        if self.error is not None:
            raise self.error
        return True

    def run(self, *steps: Callable[[], object]) -> None:
        """Run until nothing waits; then take the next step and run again, and at last stop."""
        left = iter([*steps, self.reporter.stop])

        def take_next_step() -> None:
            next(left)()

        self.time.at_rest = take_next_step
        self.reporter.run()

    def report(self, *names: str) -> None:
        for name in names:
            self.reporter.report(reported_claim(name))

    def forget(self, name: str) -> None:
        self.reporter.forget(reported_claim(name).ref.uid)

    @property
    def written(self) -> list[str]:
        return [name for name, _ in self.writes]

    @property
    def times(self) -> list[float]:
        return [at for _, at in self.writes]

    def seconds_between_writes(self) -> Iterator[float]:
        return (later - at for at, later in itertools.pairwise(self.times))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    time = VirtualTime(hours=1)
    monkeypatch.setattr(status, "Condition", time.condition)
    return Node(time)


def names(number: int) -> list[str]:
    return [f"claim-{each}" for each in range(number)]


def test_status_is_written_a_tenth_of_a_second_after_the_last_call(node: Node) -> None:
    node.calls.times = [(0.0, 0.03), (0.08, 0.2)]
    node.report("a")

    node.run()

    assert node.times == [pytest.approx(0.3)]


def test_statuses_under_permanent_load_wait_two_seconds_and_then_go_at_20_per_second(
    node: Node,
) -> None:
    node.calls.times = [(at / 20, at / 20 + 0.01) for at in range(20 * 60)]
    node.report(*names(100))

    node.run()

    assert node.written == names(100)
    assert node.times[0] == pytest.approx(2.0)
    assert node.times[-1] == pytest.approx(2.0 + 99 / 20)
    assert min(node.seconds_between_writes()) >= 1 / 20 - 1e-9


def test_records_of_a_claim_that_follow_each_other_are_one_write(node: Node) -> None:
    node.calls.times = [(0.0, 1.0)]
    for vram in range(10, 20):
        node.reporter.report(reported_claim("a", reported_share(limit=reported_limit(vram))))

    node.run()

    assert node.written == ["a"]


def test_changed_health_is_reported_before_other_claims(node: Node) -> None:
    node.calls.times = [(0.0, 1.0)]
    node.report("a", "b", "c")
    node.reporter.report_changed(reported_claim("c"))
    node.reporter.report_changed(reported_claim("d"))

    node.run()

    assert {*node.written[:2]} == {"c", "d"}
    assert node.written[2:] == ["a", "b"]


def test_statuses_that_wait_are_written_before_the_end(node: Node) -> None:
    node.calls.times = [(0.0, 3600.0)]
    node.report("a", "b", "c")
    node.reporter.stop()

    node.reporter.run()

    assert node.written == ["a", "b", "c"]


def test_end_does_not_wait_for_an_api_server_that_is_unavailable(node: Node) -> None:
    node.error = RetryableError("no answer")
    node.report("a", "b", "c")
    node.reporter.stop()

    node.reporter.run()

    assert node.written == ["a"]


def test_end_waits_for_two_seconds_at_most(node: Node) -> None:
    node.write_seconds = 0.5
    node.report(*names(10))
    node.reporter.stop()

    node.reporter.run()

    assert len(node.written) == 4
