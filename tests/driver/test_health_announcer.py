"""Events and claim statuses when a card becomes sick or recovers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tensorfusion_dra.driver.health_announcer import HealthAnnouncer
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import GPU_0, GPU_1, NoStatus, put_claim, share_result
from tests.support.prepared_node import Setup as Node

LOST = Trouble(kind=Kind.LOST, reason="lost", text="the GPU is lost")


NOW = Sickness(worst=LOST, since=datetime.now(UTC) + timedelta(hours=1))


LONG_AGO = replace(NOW, since=datetime(2020, 1, 1, tzinfo=UTC))


class RecordingReporter(StatusReporter):
    """Reporter that only records the reported claims."""

    def __init__(self) -> None:
        super().__init__(NoStatus())
        self.names: list[str] = []

    def report_changed(self, claim: object) -> None:
        self.names.append(str(getattr(claim, "ref")))  # noqa: B009


class Setup:
    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        self.events = EventsInMemory()
        self.reports = RecordingReporter()
        self.announcer = HealthAnnouncer(
            self.node.catalog, self.node.ledger, self.reports, self.events
        )


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_worse_reason_is_reported_again_and_the_same_one_is_not(setup: Setup) -> None:
    xid = replace(NOW, worst=Trouble(kind=Kind.XID, reason="xid-79", text="XID 79"))

    setup.announcer.announce({GPU_0: xid}, {GPU_0: xid})
    setup.announcer.announce({GPU_0: xid}, {GPU_0: NOW})

    assert len(setup.events.written) == 1


def test_recovered_card_causes_a_normal_event(setup: Setup) -> None:
    setup.announcer.announce({GPU_0: NOW}, {})

    assert setup.events.written == []
    assert setup.events.noted == [("GPURecovered", f"{GPU_0} is healthy again")]


def test_sickness_found_by_an_earlier_process_has_no_event_but_its_claims_are_reported(
    setup: Setup,
) -> None:
    claim = put_claim(setup.node, "a", share_result(GPU_0))
    setup.node.prepare(claim)

    setup.announcer.announce({}, {GPU_0: LONG_AGO})

    assert setup.events.written == []
    assert setup.reports.names == [str(claim)]


def test_only_claims_on_the_sick_card_are_reported(setup: Setup) -> None:
    on_card = put_claim(setup.node, "a", share_result(GPU_0))
    on_other_card = put_claim(setup.node, "b", share_result(GPU_1))
    setup.node.prepare(on_card, on_other_card)

    setup.announcer.announce({}, {GPU_0: NOW})

    assert setup.reports.names == [str(on_card)]
