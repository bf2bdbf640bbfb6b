"""Statuses of claims: written by a thread of their own, at a pace, and retried after failures."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.errors import (
    MissingPermissionError,
    RetryableError,
    StatusError,
    UnreadableError,
)
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver import status
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.runtime.calls import CallsInFlight
from tests.support.builders.reported_claims import (
    DEVICE,
    reported_claim,
    reported_limit,
    reported_share,
)
from tests.support.logs import capture_logs
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import FOREVER, PATIENCE_SECONDS


def missing_right(right: str = "patch on resourceclaims/status") -> MissingPermissionError:
    return MissingPermissionError("claim default/a: PATCH: 403", right)


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
    """A reporter whose thread is the test's own, and the statuses as an API server stores them.

    Attributes:
        written, times: Claim name and virtual time of each write, failed ones too.
        stored: Entries of each write that succeeded.
        error: Raised by each write until `outage_seconds`.
        faults: Errors of the next writes, one each.
        gone: Names of claims that do not exist.
        unhealthy: The unhealthy cards.
        write_seconds: Time that a write takes.
    """

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.calls = CallsAt(time)
        self.unhealthy: dict[str, Unhealthy] = {}
        minutes = itertools.count()
        self.reporter = StatusReporter(
            self,
            unhealthy=lambda: self.unhealthy,
            calls=self.calls,
            now=lambda: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=next(minutes)),
            clock=lambda: time.seconds,
        )
        self.written: list[str] = []
        self.times: list[float] = []
        self.stored: list[list[dict[str, Any]]] = []
        self.error: Exception | None = None
        self.faults: list[Exception] = []
        self.gone: set[str] = set()
        self.outage_seconds = FOREVER
        self.write_seconds = 0.0
        self.before_write: Callable[[], object] = lambda: None

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        self.written.append(ref.name)
        self.times.append(self.time.seconds)
        self.time.passed(self.write_seconds)
        self.before_write()
        if self.error is not None and self.times[-1] < self.outage_seconds:
            raise self.error
        if self.faults:
            raise self.faults.pop(0)
        if ref.name in self.gone:
            return False
        self.stored.append([dict(device) for device in devices])
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

    def report_limit(self, vram_gib: int) -> None:
        self.reporter.report(reported_claim("a", reported_share(limit=reported_limit(vram_gib))))

    def forget(self, name: str) -> None:
        self.reporter.forget(reported_claim(name).ref.uid)

    @property
    def conditions(self) -> list[dict[str, Any]]:
        return [entries[0]["conditions"][0] for entries in self.stored]

    @property
    def transitions(self) -> list[str]:
        return [each["lastTransitionTime"] for each in self.conditions]

    def vram_limits(self) -> list[int]:
        return [entries[0]["data"]["limits"]["vramBytes"] // GIB for entries in self.stored]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    time = VirtualTime(hours=1)
    monkeypatch.setattr(status, "Condition", time.condition)
    return Node(time)


def names(number: int) -> list[str]:
    return [f"claim-{each}" for each in range(number)]


def test_each_claim_is_written_once_with_its_own_time_unless_it_has_no_device_of_ours(
    node: Node,
) -> None:
    without_shares = replace(reported_claim("without-shares"), shares=())

    node.run(
        lambda: node.report("a"),
        lambda: node.report("a"),
        lambda: node.reporter.report(without_shares),
        lambda: node.report("b"),
    )

    assert node.written == ["a", "b"]
    assert node.transitions == ["2026-03-01T00:00:00Z", "2026-03-01T00:01:00Z"]


def test_changed_limit_is_written_with_the_earlier_transition_time(node: Node) -> None:
    node.run(lambda: node.report("a"), lambda: node.report_limit(20))

    assert node.vram_limits() == [24, 20]
    assert len({*node.transitions}) == 1
    assert [each["reason"] for each in node.conditions] == ["Prepared", "MemoryLimitClamped"]


def test_report_does_not_block_on_a_hanging_server_and_the_newest_record_is_written(
    node: Node,
) -> None:
    def report_meanwhile() -> None:
        node.before_write = lambda: None
        for vram_gib in (23, 22, 21):
            other = Thread(target=node.report_limit, args=(vram_gib,), daemon=True)
            other.start()
            other.join(PATIENCE_SECONDS)
            assert not other.is_alive()

    node.before_write = report_meanwhile
    node.report("first")

    node.run()

    assert node.vram_limits() == [24, 21]


@pytest.mark.parametrize("is_forgotten_meanwhile", [False, True])
def test_write_to_a_deleted_or_forgotten_claim_is_not_retried(
    node: Node, is_forgotten_meanwhile: bool
) -> None:
    if is_forgotten_meanwhile:
        node.faults = [RetryableError("500")]
        node.before_write = lambda: node.forget("a")
    else:
        node.gone = {"a"}
    node.report("a", "b")

    node.run()

    assert node.written == ["a", "b"]


def test_forgotten_claim_is_written_again_only_after_a_new_report(node: Node) -> None:
    node.report("a", "b")
    node.forget("a")
    node.forget("never-seen")

    node.run(lambda: node.forget("b"), lambda: node.report("b"))

    assert node.written == ["b", "b"]


def test_claim_is_not_ready_while_its_card_is_sick(node: Node) -> None:
    lost = HealthProblem(kind=ProblemKind.LOST, reason="lost", text="the GPU is lost")
    sick = {DEVICE: Unhealthy(worst=lost, since=datetime(2026, 3, 1, 12, tzinfo=UTC))}

    def report(unhealthy: dict[str, Unhealthy]) -> None:
        node.unhealthy = unhealthy
        node.reporter.report_changed(reported_claim("a"))

    node.run(lambda: report({}), lambda: report(sick), lambda: report({}))

    assert [(each["status"], each["reason"]) for each in node.conditions] == [
        ("True", "Prepared"),
        ("False", "GPUUnhealthy"),
        ("True", "Prepared"),
    ]
    assert node.conditions[1]["message"].startswith("the GPU is lost; ")
    first, second, third = node.transitions
    assert (first, second) == ("2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z")
    assert third > first


def test_fault_of_the_server_is_retried_for_ever_and_with_others(node: Node) -> None:
    node.faults = [RetryableError("no answer")] * 9

    def report_another() -> None:
        if len(node.written) == 9:
            node.report("b")

    node.before_write = report_another
    node.report("a")

    node.run()

    assert node.written == ["a"] * 9 + ["b", "a"]


@pytest.mark.parametrize(
    "fault",
    [
        StatusError("Request entity too large", 413),
        StatusError("etcdserver: request is too large", 500),
        StatusError("denied by a policy", 422),
        UnreadableError("found more than 1048576 bytes"),
    ],
)
def test_claim_that_the_server_refuses_delays_no_other_and_is_tried_less_and_less(
    node: Node, fault: RetryableError
) -> None:
    def refuse() -> None:
        if node.written == ["a"]:
            node.report("b")
        if node.written[-1] == "a" and len(node.written) < 10:
            raise fault

    node.before_write = refuse
    node.report("a")

    node.run()

    assert node.written == ["a", "b", *["a"] * 8]
    assert node.times[1] < 0.2
    assert 30 <= node.times[-1] <= 600


def test_earlier_status_is_written_again_after_a_write_with_unknown_outcome(node: Node) -> None:
    def change_and_change_back() -> None:
        node.faults = [RetryableError("the answer was lost")]
        node.report_limit(20)
        node.before_write = lambda: node.report("a")

    node.run(lambda: node.report("a"), change_and_change_back)

    assert node.vram_limits() == [24, 24]


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
    assert node.times == pytest.approx([2.0 + number / 20 for number in range(100)])


def test_changed_health_is_reported_before_other_claims(node: Node) -> None:
    node.calls.times = [(0.0, 1.0)]
    node.report("a", "b", "c")
    node.reporter.report_changed(reported_claim("c"))
    node.reporter.report_changed(reported_claim("d"))

    node.run()

    assert {*node.written[:2]} == {"c", "d"}
    assert node.written[2:] == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "write_seconds", "written"),
    [
        (None, 0.0, 10),
        (None, 0.5, 4),  # the end waits for two seconds at most
        (RetryableError("no answer"), 0.0, 1),
        (missing_right(), 0.0, 1),
    ],
)
def test_statuses_that_wait_are_written_before_the_end_if_the_api_server_answers_soon(
    node: Node, error: Exception | None, write_seconds: float, written: int
) -> None:
    node.calls.times = [(0.0, 3600.0)]
    node.error, node.write_seconds = error, write_seconds
    node.report(*names(10))
    node.reporter.stop()

    node.reporter.run()

    assert node.written == names(10)[:written]


def test_missing_right_stops_all_writes_for_ten_minutes_and_each_is_logged_once(node: Node) -> None:
    node.outage_seconds = 1700
    rights = itertools.cycle(["patch on resourceclaims/status", "associated-node:patch"])
    node.before_write = lambda: setattr(node, "error", missing_right(next(rights)))
    node.report("a", "b", "c")

    with capture_logs() as logs:
        node.run()

    assert node.times[:4] == pytest.approx([0, 600, 1200, 1800])
    assert sorted(node.written[3:]) == ["a", "b", "c"]
    lines = [each for each in logs if each["log_level"] != "debug"]
    assert [(each["event"], each["log_level"]) for each in lines] == [
        ("status_forbidden", "error")
    ] * 2
    assert "expected patch on resourceclaims/status" in lines[0]["error"]


@pytest.mark.parametrize("requested_seconds", [0, 100])
def test_statuses_of_100_claims_survive_a_six_hour_outage_with_few_requests(
    monkeypatch: pytest.MonkeyPatch, requested_seconds: float
) -> None:
    time, outage_seconds = VirtualTime(hours=100), 6 * 3600.0
    monkeypatch.setattr(status, "Condition", time.condition)
    node = Node(time)
    node.error = RetryableError("no answer", after_seconds=requested_seconds)
    node.outage_seconds = outage_seconds
    node.report(*names(100))

    with capture_logs() as logs:
        node.run()

    during = [at for at in node.times if at < outage_seconds]
    assert len(during) <= outage_seconds / 300 + 15
    assert all(later - at >= requested_seconds for at, later in itertools.pairwise(during))
    assert {*node.written[len(during) :]} == {*names(100)}
    assert node.times[-1] <= outage_seconds + 1200
    assert [line["event"] for line in logs].count("status_retried") <= 6 * 6 + 1
