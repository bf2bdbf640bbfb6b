"""Statuses and Events outlive an outage of hours, at the cost of a handful of requests."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver import status
from tensorfusion_dra.driver.health_announcer import HealthAnnouncer
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import GPU_0, GPU_1, NoStatus, Setup, put, share
from tests.support.status_claims import claim
from tests.support.virtual_time import VirtualTime

HOUR = 3600.0
LOST = Trouble(kind=Kind.LOST, reason="lost", text="the GPU is lost")
NOW = Sickness(worst=LOST, since=datetime.now(UTC) + timedelta(hours=1))


class Outage:
    """An API server that answers no write for six hours; then all claims are written.

    Attributes:
        tries: When each write was tried, in virtual seconds.
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
def test_a_hundred_statuses_outlive_six_hours_with_one_request_in_some_minutes(
    monkeypatch: pytest.MonkeyPatch, error: RetryableError
) -> None:
    time = VirtualTime(hours=100)
    monkeypatch.setattr(status, "Condition", time.condition)
    outage = Outage(time, error)
    for number in range(100):
        outage.reporter.report(claim(f"claim-{number}"))

    with capture_logs() as logs:
        outage.reporter.run()

    assert len(outage.written) == 100
    during = [at for at in outage.tries if at < 6 * HOUR]
    assert len(during) <= 6 * HOUR / 300 + 15
    assert outage.tries[-1] <= 6 * HOUR + 1200
    assert [line["event"] for line in logs].count("status_retried") <= 6 * 6 + 1


def test_a_pause_that_the_server_asks_for_is_kept_by_every_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = VirtualTime(hours=100)
    monkeypatch.setattr(status, "Condition", time.condition)
    outage = Outage(time, RetryableError("429", after_seconds=100))
    for number in range(100):
        outage.reporter.report(claim(f"claim-{number}"))

    outage.reporter.run()

    during = [at for at in outage.tries if at < 6 * HOUR]
    assert all(later - at >= 100 for at, later in itertools.pairwise(during))


class Noted(StatusReporter):
    """Notes the names of claims that are to be reported, in place of reporting them."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(NoStatus())
        self.names = names

    def report(self, claim: PreparedClaim, *, trouble: str | None = None) -> None:
        self.names.append(claim.ref.name)


class Newsroom:
    """Health news of a node, whose API server a test takes away."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.node = Setup(folder)
        self.reported: list[str] = []
        self.events = Away()
        reporter = Noted(self.reported)
        self.ledger = self.node.ledger
        self.announcer = HealthAnnouncer(
            self.node.catalog, self.ledger, reporter, self.events, clock=lambda: self.now
        )

    def pass_hours(self, hours: float) -> None:
        end = self.now + hours * HOUR
        while self.now < end:
            self.now += 60
            self.announcer.retry()


class Away(EventsInMemory):
    """Counts what is tried."""

    tried = 0

    def warn(self, reason: str, message: str) -> bool:
        self.tried += 1
        return super().warn(reason, message)


@pytest.fixture
def newsroom(tmp_path: Path) -> Newsroom:
    return Newsroom(tmp_path)


def test_the_news_of_a_sick_card_outlives_six_hours_with_a_handful_of_requests(
    newsroom: Newsroom,
) -> None:
    newsroom.events.away = True
    newsroom.announcer.tell({}, {GPU_0: NOW, GPU_1: NOW})

    newsroom.pass_hours(6)
    tried = newsroom.events.tried
    newsroom.events.away = False
    newsroom.pass_hours(0.25)

    assert tried <= 6 * HOUR / 300 + 15
    assert newsroom.events.written == [
        ("GPUUnhealthy", f"{name}: the GPU is lost") for name in sorted((GPU_0, GPU_1))
    ]


def test_of_a_card_that_recovered_in_an_outage_only_the_last_news_is_told(
    newsroom: Newsroom,
) -> None:
    newsroom.events.away = True
    newsroom.announcer.tell({}, {GPU_0: NOW})
    newsroom.announcer.tell({GPU_0: NOW}, {})

    newsroom.events.away = False
    newsroom.pass_hours(0.25)

    assert newsroom.events.written == []
    assert newsroom.events.noted == [("GPURecovered", f"{GPU_0} is healthy again")]


def test_news_during_a_long_outage_is_tried_at_once(newsroom: Newsroom) -> None:
    newsroom.events.away = True
    newsroom.announcer.tell({}, {GPU_0: NOW})
    newsroom.pass_hours(6)
    newsroom.events.away = False

    newsroom.announcer.tell({GPU_0: NOW}, {GPU_0: NOW, GPU_1: replace(NOW)})

    assert len(newsroom.events.written) == 2


def test_claims_are_reported_once_the_ledger_can_be_read_again(
    newsroom: Newsroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    newsroom.node.prepare(put(newsroom.node, "a", share(GPU_0)))
    with monkeypatch.context() as patched:
        patched.setattr(newsroom.ledger, "claims", unreadable)
        newsroom.announcer.tell({}, {GPU_0: NOW})
        assert newsroom.reported == []

    newsroom.pass_hours(0.25)

    assert newsroom.reported == ["a"]


def unreadable() -> Sequence[Any]:
    raise RetryableError("ledger: disk I/O error")
