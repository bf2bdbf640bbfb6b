"""Events and claim statuses when a card becomes sick or recovers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import (
    CardEvent,
    EventKind,
    HealthProblem,
    ProblemKind,
    Unhealthy,
)
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.health_announcer import HealthAnnouncer
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import GPU_0, GPU_1, NoStatus, Setup, put_claim, share_result
from tests.support.threads import running
from tests.support.waiting import eventually

LOST = HealthProblem(kind=ProblemKind.LOST, reason="lost", text="the GPU is lost")
XID = HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79")
NOW = Unhealthy(worst=LOST, since=datetime.now(UTC) + timedelta(hours=1))
LONG_AGO = replace(NOW, since=datetime(2020, 1, 1, tzinfo=UTC))
RECOVERED = ("GPURecovered", f"{GPU_0} is healthy again")


class RecordingReporter(StatusReporter):
    """Reporter that only records the names of the claims with a changed state."""

    def __init__(self) -> None:
        super().__init__(NoStatus())
        self.names: list[str] = []

    def report(self, claim: PreparedClaim, *, reason: str = "") -> None:
        """Record nothing: the node's own calls report here too."""

    def report_changed(self, claim: PreparedClaim) -> None:
        self.names.append(claim.ref.name)


class Announced:
    """A node's announcer, which announces each change at once."""

    def __init__(self, folder: Path) -> None:
        self.node = Setup(folder)
        self.events = EventsInMemory()
        self.reports = RecordingReporter()
        self.announcer = HealthAnnouncer(
            self.node.catalog, self.node.store, self.reports, self.events
        )

    def change(self, before: dict[str, Unhealthy], now: dict[str, Unhealthy]) -> None:
        self.announcer.note(before, now)
        self.announcer.announce()


@pytest.fixture
def announced(tmp_path: Path) -> Announced:
    return Announced(tmp_path)


def test_worse_reason_is_reported_again_and_the_same_one_is_not(announced: Announced) -> None:
    xid = replace(NOW, worst=XID)

    announced.change({GPU_0: xid}, {GPU_0: xid})
    announced.change({GPU_0: xid}, {GPU_0: NOW})

    assert announced.events.written == [("GPUUnhealthy", f"{GPU_0}: the GPU is lost")]


def test_recovered_card_causes_a_normal_event(announced: Announced) -> None:
    announced.change({GPU_0: NOW}, {})

    assert (announced.events.written, announced.events.noted) == ([], [RECOVERED])


def test_sickness_found_by_an_earlier_process_has_no_event_but_its_claims_are_reported(
    announced: Announced,
) -> None:
    announced.node.prepare(
        put_claim(announced.node, "on-card", share_result(GPU_0)),
        put_claim(announced.node, "on-other-card", share_result(GPU_1)),
    )

    announced.change({}, {GPU_0: LONG_AGO})

    assert announced.events.written == []
    assert announced.reports.names == ["on-card"]


def test_only_the_last_state_of_each_card_is_announced_after_an_outage(
    announced: Announced,
) -> None:
    announced.events.away = True
    announced.change({}, {GPU_0: NOW})
    announced.change({GPU_0: NOW}, {})
    announced.change({}, {GPU_1: NOW})
    assert announced.events.written == announced.events.noted == []

    announced.events.away = False
    announced.announcer.announce()
    announced.announcer.announce()

    assert announced.events.written == [("GPUUnhealthy", f"{GPU_1}: the GPU is lost")]
    assert announced.events.noted == [RECOVERED]


def test_claims_are_reported_once_the_ledger_is_readable_again(
    announced: Announced, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> None:
        raise RetryableError("store: disk I/O error")

    announced.node.prepare(put_claim(announced.node, "a", share_result(GPU_0)))
    with monkeypatch.context() as patched:
        patched.setattr(announced.node.store, "claims", unreadable)
        announced.change({}, {GPU_0: NOW})
        assert announced.reports.names == []

    announced.announcer.announce()
    announced.announcer.announce()

    assert announced.reports.names == ["a"]


def test_changes_are_announced_until_the_loop_is_stopped(announced: Announced) -> None:
    node = announced.node
    node.prepare(put_claim(node, "a", share_result(GPU_0)))
    with running(announced.announcer.run, stop=announced.announcer.stop):
        (gpu, *_) = node.discovery.read().gpus
        node.catalog.on_event(CardEvent(gpu_uuid=gpu.uuid, kind=EventKind.XID, code=79))

        assert eventually(lambda: announced.reports.names == ["a"])

    ((reason, _),) = announced.events.written
    assert reason == "GPUUnhealthy"
