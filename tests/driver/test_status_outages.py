"""Statuses and Events during an outage of hours: none is lost, and few requests are sent."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver import status
from tensorfusion_dra.driver.health_announcer import HealthAnnouncer
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.builders.reported_claims import reported_claim
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import GPU_0, GPU_1, NoStatus, put_claim, share_result
from tests.support.prepared_node import Setup as Node
from tests.support.virtual_time import VirtualTime

HOUR = 3600.0
LOST = Trouble(kind=Kind.LOST, reason="lost", text="the GPU is lost")
NOW = Sickness(worst=LOST, since=datetime.now(UTC) + timedelta(hours=1))


class Outage:
    """An API server that fails every write for six hours and accepts all later ones.

    Attributes:
        tries: Virtual time of each write, in seconds.
    """

    def __init__(self, time: VirtualTime, error: RetryableError) -> None:
        self._time = time
        self._error = error
        self.tries: list[float] = []
        self.written: set[str] = set()
        self.reporter = StatusReporter(self, clock=lambda: time.seconds)

    def write(self, ref: ClaimRef, _devices: Sequence[Mapping[str, Any]]) -> bool:
        self.tries.append(self._time.seconds)
        if self._time.seconds < 6 * HOUR:
            raise self._error
        self.written.add(ref.name)
        if len(self.written) == 100:
            self.reporter.stop()
        return True


@pytest.mark.parametrize(
    "error",
    [RetryableError("no answer within the time"), RetryableError("429", after_seconds=100)],
)
def test_statuses_of_100_claims_survive_a_six_hour_outage_with_few_requests(
    monkeypatch: pytest.MonkeyPatch, error: RetryableError
) -> None:
    time = VirtualTime(hours=100)
    monkeypatch.setattr(status, "Condition", time.condition)
    outage = Outage(time, error)
    for number in range(100):
        outage.reporter.report(reported_claim(f"claim-{number}"))

    with capture_logs() as logs:
        outage.reporter.run()

    assert len(outage.written) == 100
    during = [at for at in outage.tries if at < 6 * HOUR]
    assert len(during) <= 6 * HOUR / 300 + 15
    assert outage.tries[-1] <= 6 * HOUR + 1200
    assert [line["event"] for line in logs].count("status_retried") <= 6 * 6 + 1


def test_all_claims_wait_for_the_pause_that_the_server_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = VirtualTime(hours=100)
    monkeypatch.setattr(status, "Condition", time.condition)
    outage = Outage(time, RetryableError("429", after_seconds=100))
    for number in range(100):
        outage.reporter.report(reported_claim(f"claim-{number}"))

    outage.reporter.run()

    during = [at for at in outage.tries if at < 6 * HOUR]
    assert all(later - at >= 100 for at, later in itertools.pairwise(during))


class RecordingReporter(StatusReporter):
    """Reporter that only records the names of the reported claims."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(NoStatus())
        self.names = names

    def report(self, claim: PreparedClaim, *, trouble: str = "") -> None:
        """Record nothing: the node's own calls report here too."""

    def report_changed(self, claim: PreparedClaim) -> None:
        self.names.append(claim.ref.name)


class Setup:
    """A node's health announcer, with an API server that a test can stop."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.node = Node(folder)
        self.reported: list[str] = []
        self.events = CountedEvents()
        reporter = RecordingReporter(self.reported)
        self.ledger = self.node.ledger
        self.announcer = HealthAnnouncer(
            self.node.catalog, self.ledger, reporter, self.events, clock=lambda: self.now
        )

    def pass_hours(self, hours: float) -> None:
        end = self.now + hours * HOUR
        while self.now < end:
            self.now += 60
            self.announcer.retry()


class CountedEvents(EventsInMemory):
    """Events with a count of the attempts to write them."""

    tried = 0

    def warn(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        self.tried += 1
        return super().warn(reason, message, pod=pod)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_events_of_sick_cards_survive_a_six_hour_outage_with_few_requests(
    setup: Setup,
) -> None:
    setup.events.away = True
    setup.announcer.announce({}, {GPU_0: NOW, GPU_1: NOW})

    setup.pass_hours(6)
    tried = setup.events.tried
    setup.events.away = False
    setup.pass_hours(0.25)

    assert tried <= 6 * HOUR / 300 + 15
    assert setup.events.written == [
        ("GPUUnhealthy", f"{name}: the GPU is lost") for name in sorted((GPU_0, GPU_1))
    ]


def test_only_the_recovery_is_reported_of_a_card_that_recovered_during_an_outage(
    setup: Setup,
) -> None:
    setup.events.away = True
    setup.announcer.announce({}, {GPU_0: NOW})
    setup.announcer.announce({GPU_0: NOW}, {})

    setup.events.away = False
    setup.pass_hours(0.25)

    assert setup.events.written == []
    assert setup.events.noted == [("GPURecovered", f"{GPU_0} is healthy again")]


def test_claims_are_reported_once_the_ledger_is_readable_again(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.node.prepare(put_claim(setup.node, "a", share_result(GPU_0)))
    with monkeypatch.context() as patched:
        patched.setattr(setup.ledger, "claims", raise_ledger_error)
        setup.announcer.announce({}, {GPU_0: NOW})
        assert setup.reported == []

    setup.pass_hours(0.25)

    assert setup.reported == ["a"]


def raise_ledger_error() -> Sequence[Any]:
    raise RetryableError("ledger: disk I/O error")
