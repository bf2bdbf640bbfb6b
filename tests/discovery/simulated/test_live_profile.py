"""Simulated cards that change while they are in use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.discovery.simulated import simulated_discovery
from tensorfusion_dra.discovery.simulated.simulated_discovery import LiveProfile, SimulatedDiscovery
from tensorfusion_dra.driver.ports.discovery import HungError
from tests.support.waiting import PATIENCE_SECONDS, eventually


def write(file: Path, *gpus: str, node: str = "") -> Path:
    """Write a profile with these fields for each card; its modification time always changes."""
    entries = ", ".join(f"{{product: T4{gpu}}}" for gpu in gpus)
    version = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(f"gpus: [{entries}]\n{node}", encoding="utf-8")
    os.utime(file, ns=(version + 10**9, version + 10**9))
    return file


def discovery(file: Path) -> SimulatedDiscovery:
    return simulated_discovery.from_text(str(file), node_name="node-01")


@contextmanager
def collected_events(cards: SimulatedDiscovery) -> Iterator[list[CardEvent]]:
    events: list[CardEvent] = []
    thread = Thread(target=lambda: cards.events.run(events.append))
    cards.events.watch(frozenset(gpu.uuid for gpu in cards.read().gpus))
    thread.start()
    try:
        yield events
    finally:
        cards.events.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_profile_is_reloaded_when_its_file_changes(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", "", "")
    cards = discovery(file)
    before = cards.read()

    write(file, "", ", fault: absent", node="driver_version: '590.1'")

    (left,) = cards.read().gpus
    assert left.uuid == before.gpus[0].uuid
    assert left.driver_version == "590.1"


def test_profile_that_becomes_invalid_keeps_the_last_valid_one(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", "")
    live = LiveProfile(str(file))
    good = live.current()

    write(file, ", fault: fire")
    with capture_logs() as logs:
        kept = [live.current(), live.current()]

    assert kept == [good, good]
    assert [line["event"] for line in logs] == ["profile_unusable"]


def test_hanging_driver_may_recover(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", "", node="hangs: true")
    cards = discovery(file)

    with pytest.raises(HungError):
        cards.read()
    write(file, "")

    assert len(cards.read().gpus) == 1


def test_lost_card_and_recovery_action_are_reported_as_by_nvml(tmp_path: Path) -> None:
    cards = discovery(write(tmp_path / "p.yaml", ", fault: lost", ", recovery_action: 2"))

    found = cards.read()

    assert [lost.uuid for lost in found.lost] == [left.subject for left in found.left_out]
    assert found.recovery == {found.lost[0].uuid: 0, found.gpus[0].uuid: 2}


def test_xid_is_reported_when_it_appears_in_the_profile(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", ", xid: 13", "")
    cards = discovery(file)
    first, second = (gpu.uuid for gpu in cards.read().gpus)
    with collected_events(cards) as events:
        write(file, ", xid: 13", ", xid: 79")
        assert eventually(lambda: len(events) == 1)
        write(file, "", ", xid: 79")
        write(file, ", xid: 48", ", xid: 79")
        assert eventually(lambda: len(events) == 2)

    assert [(event.gpu_uuid, event.code) for event in events] == [(second, 79), (first, 48)]


def test_events_of_unwatched_cards_are_not_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", "", "")
    cards = discovery(file)
    second = cards.read().gpus[1].uuid
    with collected_events(cards) as events:
        cards.events.watch(frozenset({second}))
        write(file, ", xid: 79", ", xid: 48")
        assert eventually(lambda: bool(events))

    assert [event.gpu_uuid for event in events] == [second]


@pytest.mark.parametrize(
    ("gpu", "node", "message"),
    [
        (", xid: many", "", "xid: found 'many', expected a number"),
        (", xid: -1", "", "xid: found -1, expected a number"),
        (", recovery_action: true", "", "recovery_action: found True, expected a number"),
        ("", "hangs: maybe", "hangs: found 'maybe', expected true or false"),
    ],
)
def test_invalid_fault_is_refused(tmp_path: Path, gpu: str, node: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        discovery(write(tmp_path / "p.yaml", gpu, node=node))
