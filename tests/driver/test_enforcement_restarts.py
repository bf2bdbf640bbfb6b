"""Watch over the limits of prepared claims: restarts, other instances, Events that wait."""

from pathlib import Path

import pytest

from tests.driver.watched_node import CLAIM, Setup, named, prepared


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_unprepared_claim_is_forgotten(setup: Setup) -> None:
    prepared(setup)
    setup.watch.forget(CLAIM.ref.uid)
    setup.signs.heartbeat -= 100
    setup.look()

    assert (setup.reported, setup.states()) == ([], [])


def test_restart_reports_only_what_changed_meanwhile(setup: Setup, tmp_path: Path) -> None:
    for name in "ab":
        prepared(setup, named(name))
    setup.look()

    restarted = Setup(tmp_path)
    restarted.watch.follow([named("a"), named("b")])
    restarted.look()
    assert (restarted.reported, restarted.events.written) == ([], [])

    restarted = Setup(tmp_path)
    restarted.watch.follow([named("a"), named("b")])
    restarted.signs.found = False
    restarted.look()
    assert restarted.reported == ["a", "b"]
    assert restarted.states(named("a")) == [("NotEnforced", "SharedMemoryMissing")]


def test_restart_does_not_repeat_a_warning_and_withdraws_it(setup: Setup, tmp_path: Path) -> None:
    prepared(setup)
    setup.signs.found = False
    setup.look(60)
    assert len(setup.events.written) == 1

    restarted = Setup(tmp_path)
    restarted.watch.follow([CLAIM])
    restarted.signs.found = False
    restarted.look()
    restarted.signs.found = True
    restarted.look()

    assert (restarted.events.written, len(restarted.events.noted)) == ([], 1)
    assert restarted.reported == ["a"]


@pytest.mark.parametrize("content", ["", "[]", '{"uid-a": [{}]}', '{"uid-a": 3}', "{"])
def test_without_a_usable_file_each_status_is_written_once(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "limits.json").write_text(content)
    setup = Setup(tmp_path)
    setup.watch.follow([CLAIM])

    setup.look()
    setup.look()

    assert setup.reported == ["a"]


def test_claim_that_another_instance_unprepared_is_dropped_at_the_second_reading(
    setup: Setup,
) -> None:
    prepared(setup)

    setup.watch.follow([])
    assert setup.states() != []
    setup.watch.follow([])
    assert setup.states() == []


def test_events_that_cannot_be_written_wait(setup: Setup) -> None:
    claims = [named(f"c{number}") for number in range(12)]
    for claim in claims:
        prepared(setup, claim)
    setup.events.away = True
    setup.signs.heartbeat -= 100
    setup.look(60)
    assert setup.events.written == []

    setup.events.away = False
    written = []
    for _ in range(3):
        setup.look()
        written.append(len(setup.events.written))

    assert written == [5, 10, 12]
