"""Watch over the limits of prepared claims: verdicts, statuses and Events."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.enforcement.signs import Places
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.driver.watched_node import CLAIM, HEARTBEAT, START, Setup, named, prepared
from tests.support.builders.prepared_claims import (
    POD,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_first_verdict_goes_with_the_first_status(setup: Setup) -> None:
    setup.watch.note(CLAIM)

    assert setup.states() == [("Enforced", "LimiterActive")]
    setup.look()
    assert setup.reported == []


def test_changed_verdict_is_reported_once(setup: Setup) -> None:
    setup.signs.processes = 0
    prepared(setup)
    assert setup.states() == [("Unknown", "NoProcessYet")]

    setup.signs.processes = 1
    for _ in range(3):
        setup.look()

    assert setup.reported == ["a"]
    assert setup.states() == [("Enforced", "LimiterActive")]


def test_dead_hypervisor_is_seen_told_and_withdrawn(setup: Setup) -> None:
    prepared(setup)
    setup.look(60)

    setup.signs.heartbeat -= 100
    with capture_logs() as logs:
        setup.look()
        setup.look()

    assert setup.states() == [("NotEnforced", "HeartbeatStale")]
    assert setup.reported == ["a"]
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("limits_not_enforced", "HeartbeatStale")
    ]
    ((reason, text),) = setup.events.written
    assert reason == "LimitsNotEnforced"
    assert text.startswith("claim a: /run/tensor-fusion/shm/team-a/trainer-0/shm: the last heartbe")
    assert setup.events.pods == [POD]

    setup.signs.heartbeat = HEARTBEAT
    setup.look(60)

    assert setup.reported == ["a", "a"]
    ((reason, _),) = setup.events.noted
    assert reason == "LimitsEnforced"
    assert setup.events.pods == [POD, POD]


def test_warning_stands_while_the_state_is_unknown(setup: Setup) -> None:
    prepared(setup)
    setup.signs.heartbeat -= 100
    setup.look(60)

    setup.signs.heartbeat, setup.signs.processes = HEARTBEAT, 0
    setup.look(60)
    assert (setup.reported, setup.events.noted) == (["a", "a"], [])

    setup.signs.processes = 1
    setup.look(60)
    assert len(setup.events.noted) == 1


def test_enforcer_that_comes_and_goes_is_reported_twice_a_minute(setup: Setup) -> None:
    prepared(setup)
    for turn in range(60):
        setup.signs.heartbeat = HEARTBEAT - 100 * (turn % 2)
        setup.look()

    assert len(setup.reported) <= 20  # within ten minutes


def test_limits_that_hold_no_longer_are_told_at_once(setup: Setup) -> None:
    setup.signs.processes = 0
    prepared(setup)
    setup.signs.processes = 1
    setup.look(60)
    assert setup.states() == [("Enforced", "LimiterActive")]

    setup.signs.heartbeat -= 100
    setup.look()

    assert setup.states() == [("NotEnforced", "HeartbeatStale")]
    setup.signs.heartbeat = HEARTBEAT
    setup.look(59)
    assert setup.states() == [("NotEnforced", "HeartbeatStale")]


def test_transition_time_is_that_of_the_state_and_not_of_its_reason(setup: Setup) -> None:
    prepared(setup)
    setup.signs.heartbeat -= 100
    setup.look(60)
    (stale,) = setup.watch.standing(CLAIM)

    setup.signs.found = False
    setup.look(60)
    (missing,) = setup.watch.standing(CLAIM)

    assert (stale.since, missing.since) == (START + timedelta(seconds=60),) * 2
    assert (stale.verdict.reason, missing.verdict.reason) == (
        "HeartbeatStale",
        "SharedMemoryMissing",
    )


def test_missing_shared_memory_means_nothing_for_thirty_seconds(setup: Setup) -> None:
    setup.signs.found = False
    prepared(setup)
    setup.look(29)
    assert setup.states() == [("Unknown", "Starting")]

    setup.look(1)
    assert setup.states() == [("NotEnforced", "SharedMemoryMissing")]


def test_changed_limits_have_thirty_seconds_to_arrive(setup: Setup) -> None:
    prepared(setup)
    setup.look(60)

    setup.watch.note(replace(CLAIM, shares=(prepared_share(0, limit(10, 10)),)))
    setup.look()
    assert setup.states() == [("Unknown", "Starting")]

    setup.look(60)
    assert setup.states() == [("NotEnforced", "LimitsDiffer")]


def test_simulated_claims_are_never_looked_at(setup: Setup) -> None:
    claim = prepared_claim(simulated_share(0, limit(25, 20)), enforcer="tensor-fusion")
    prepared(setup, claim)
    setup.signs.read.clear()

    setup.look()

    assert setup.states(claim) == [("Unknown", "SimulatedGPU")]
    assert setup.signs.read == []


def test_one_mps_daemon_is_asked_once_for_all_claims(setup: Setup) -> None:
    claims = [named(name, enforcer="mps") for name in "abc"]
    for claim in claims:
        prepared(setup, claim)
    setup.signs.read.clear()
    setup.signs.trouble_of_daemon = "nobody listens"

    setup.look()

    assert len(setup.signs.read) == 1
    assert setup.reported == ["a", "b", "c"]


def test_claim_with_signs_of_its_own_beside_the_daemon_is_read_itself(tmp_path: Path) -> None:
    class WithLibrary(Mps):
        def places(self, claim: PreparedClaim) -> Places:
            files = ("/libvgpu.so",) if claim.ref.name == "b" else ()
            return replace(super().places(claim), files=files)

    setup = Setup(tmp_path, {"mps": WithLibrary()})
    for name in "abc":
        prepared(setup, named(name, enforcer="mps"))
    setup.signs.read.clear()

    setup.look()

    assert [places.files for places in setup.signs.read] == [(), ("/libvgpu.so",)]


def test_claims_of_one_pod_are_judged_together(setup: Setup) -> None:
    half = prepared_share(0, limit(10, 10))
    claims = [named(name, shares=(half,), pods=(POD,)) for name in "ab"]
    for claim in claims:
        setup.watch.note(claim)
    setup.seconds = 60

    assert setup.states(claims[0]) == [("NotEnforced", "LimitsDiffer")]  # 25 % of 10 % and 10 %

    setup.watch.note(named("c", shares=(prepared_share(0, limit(5, 5)),), pods=(POD,)))
    setup.look()
    assert setup.states(claims[0]) == [("Enforced", "LimiterActive")]
