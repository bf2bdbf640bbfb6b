"""Who is told that a card became sick, and well again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tensorfusion_dra.driver.health_announcer import HealthAnnouncer
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import GPU_0, GPU_1, NoStatus, Setup, put, share

LOST = Trouble(kind=Kind.LOST, reason="lost", text="the GPU is lost")
NOW = Sickness(worst=LOST, since=datetime.now(UTC) + timedelta(hours=1))
LONG_AGO = replace(NOW, since=datetime(2020, 1, 1, tzinfo=UTC))


class Reports(StatusReporter):
    """Takes down the claims that are to be reported."""

    def __init__(self) -> None:
        super().__init__(NoStatus())
        self.names: list[str] = []

    def report(self, claim: object, *, trouble: str | None = None) -> None:
        assert trouble is None  # what was said of its limits stays
        self.names.append(str(getattr(claim, "ref")))  # noqa: B009


class Newsroom:
    def __init__(self, folder: Path) -> None:
        self.node = Setup(folder)
        self.events = EventsInMemory()
        self.reports = Reports()
        self.announcer = HealthAnnouncer(
            self.node.catalog, self.node.ledger, self.reports, self.events
        )


@pytest.fixture
def newsroom(tmp_path: Path) -> Newsroom:
    return Newsroom(tmp_path)


def test_a_sick_card_is_a_warning_on_the_node(newsroom: Newsroom) -> None:
    newsroom.announcer.tell({}, {GPU_0: NOW})

    assert newsroom.events.written == [("GPUUnhealthy", f"{GPU_0}: the GPU is lost")]
    assert newsroom.events.noted == []


def test_a_worse_reason_is_told_again_and_the_same_one_is_not(newsroom: Newsroom) -> None:
    xid = replace(NOW, worst=Trouble(kind=Kind.XID, reason="xid-79", text="XID 79"))

    newsroom.announcer.tell({GPU_0: xid}, {GPU_0: xid})
    newsroom.announcer.tell({GPU_0: xid}, {GPU_0: NOW})

    assert len(newsroom.events.written) == 1


def test_a_card_that_recovered_is_no_warning(newsroom: Newsroom) -> None:
    newsroom.announcer.tell({GPU_0: NOW}, {})

    assert newsroom.events.written == []
    assert newsroom.events.noted == [("GPURecovered", f"{GPU_0} is healthy again")]


def test_what_an_earlier_process_saw_is_not_told_again(newsroom: Newsroom) -> None:
    newsroom.announcer.tell({}, {GPU_0: LONG_AGO})

    assert newsroom.events.written == []


def test_the_claims_on_the_card_and_no_others_are_reported(newsroom: Newsroom) -> None:
    on_it, beside = put(newsroom.node, "a", share(GPU_0)), put(newsroom.node, "b", share(GPU_1))
    newsroom.node.prepare(on_it, beside)

    newsroom.announcer.tell({}, {GPU_0: NOW})

    assert newsroom.reports.names == [str(on_it)]
