"""Watch over the limits of prepared claims and over the node's enforcer."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims import presence
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.evidence import (
    Daemon,
    FileSign,
    NodeSigns,
    Places,
    SharedMemory,
    Signs,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.enforcement_watch import (
    LOOK_SECONDS,
    NODE_LOOK_SECONDS,
    EnforcementAnnouncer,
    EnforcementWatch,
    NodeEnforcer,
)
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState
from tests.support.builders.prepared_claims import (
    POD,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.ports import EventsInMemory

ENFORCERS: Final[Mapping[str, Enforcer]] = {
    "tensor-fusion": TensorFusion(),
    "hami-core": HamiCore(library="/usr/local/vgpu/libvgpu.so.1"),
    "mps": Mps(),
}


CLAIM: Final = prepared_claim(prepared_share(0, limit(25, 20)), enforcer="tensor-fusion")


START: Final = datetime(2026, 3, 1, tzinfo=UTC)


HEARTBEAT: Final = 1_700_000_000


class SignsInMemory:
    """Signs of a hypervisor that serves every pod, until a test changes something."""

    def __init__(self) -> None:
        self.heartbeat = HEARTBEAT
        self.processes = 1
        self.found = True
        self.trouble_of_daemon = ""
        self.read: list[Places] = []

    def of_claim(self, places: Places) -> Signs:
        self.read.append(places)
        memory = SharedMemory(
            path=places.shared_memory,
            found=self.found,
            heartbeat=self.heartbeat,
            limits={"GPU-0": limit(25, 20)},
            processes=self.processes,
        )
        daemon = Daemon(path=places.socket, trouble=self.trouble_of_daemon)
        return Signs(read_at=HEARTBEAT, shared_memory=memory, daemon=daemon)

    def of_node(self) -> NodeSigns:
        hypervisor = "device plugin answers" if self.heartbeat == HEARTBEAT else ""
        files = (FileSign(path="/libcuda_limiter.so"),)
        return NodeSigns(read_at=HEARTBEAT, files=files, hypervisor=hypervisor, asked=("nothing",))


class Setup:
    """A watch with a clock that a test moves; each Setup on one folder is one process."""

    def __init__(self, folder: Path, enforcers: Mapping[str, Enforcer] = ENFORCERS) -> None:
        self.seconds = 0.0
        self.signs = SignsInMemory()
        self.events = EventsInMemory()
        self.reported: list[str] = []
        self.announcer = EnforcementAnnouncer(self.events)
        self.watch = EnforcementWatch(
            self.signs,
            enforcers,
            SavedState(folder, saved_state.LIMITS),
            clock=lambda: self.seconds,
            now=self.now,
        )

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def look(self, after_seconds: float = LOOK_SECONDS) -> None:
        self.seconds += after_seconds
        self.watch.look(lambda claim: self.reported.append(claim.ref.name), self.announcer)
        self.announcer.write_events()

    def states(self, claim: PreparedClaim = CLAIM) -> list[tuple[str, str]]:
        standing = self.watch.standing(claim)
        return [(each.verdict.state.value, each.verdict.reason) for each in standing]


def named(name: str, **changes: Any) -> PreparedClaim:
    ref = ClaimRef(namespace="team-a", name=name, uid=f"uid-{name}")
    pod = replace(POD, name=f"pod-{name}", uid=f"pod-uid-{name}")
    return replace(CLAIM, **{"ref": ref, "pods": (pod,), **changes})


def prepared(setup: Setup, claim: PreparedClaim = CLAIM) -> None:
    """Prepare a claim and write its status."""
    setup.watch.note(claim)
    setup.watch.standing(claim)


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


NO_LIMITER: Final = NodeSigns(
    read_at=0.0,
    files=(FileSign(path="/libcuda_limiter.so", trouble="not found"),),
)


NO_HYPERVISOR: Final = NodeSigns(read_at=0.0, asked=("device plugin: not found",))


ALIVE: Final = NodeSigns(read_at=0.0, hypervisor="device plugin answers")


class SignsOfNode:
    """Signs that a test sets; counts how often they were read."""

    def __init__(self) -> None:
        self.now = NO_LIMITER
        self.looks = 0

    def of_claim(self, places: Places) -> Signs:
        raise AssertionError(places)

    def of_node(self) -> NodeSigns:
        self.looks += 1
        return self.now


class Watched:
    """A node's enforcer with a clock that a test moves."""

    def __init__(self, *, is_required: bool = False) -> None:
        self.seconds = 0.0
        self.signs = SignsOfNode()
        self.events = EventsInMemory()
        self.enforcer = NodeEnforcer(
            self.signs,
            enforcer="tensor-fusion",
            is_required=is_required,
            now=lambda: START,
            clock=lambda: self.seconds,
        )

    def look(self, signs: NodeSigns, after_seconds: float = NODE_LOOK_SECONDS) -> None:
        self.seconds += after_seconds
        self.signs.now = signs
        self.enforcer.look(self.events)


def test_missing_enforcer_has_one_event_with_consequence_and_cures() -> None:
    node = Watched()

    with capture_logs() as logs:
        for _ in range(3):
            node.look(NO_LIMITER)

    ((reason, text),) = node.events.written
    assert reason == "EnforcerMissing"
    assert text == (
        "enforcer tensor-fusion: /libcuda_limiter.so: not found: every claim for a part of a GPU "
        f"waits; {presence.cure('tensor-fusion')}"
    )
    assert len(text.encode()) < 1024  # of an Event's note
    assert node.events.pods == [None]
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("enforcer_not_seen", "LimiterMissing")
    ]
    standing = node.enforcer.standing()
    assert standing is not None
    assert (standing.verdict.state, standing.since) == ("NotEnforced", START)


def test_consequence_of_a_missing_hypervisor_depends_on_require_enforcement() -> None:
    found = []
    for is_required in (False, True):
        node = Watched(is_required=is_required)
        node.look(NO_HYPERVISOR)
        found.append(node.events.written[0][1])

    assert "claims are prepared, but nothing keeps them within their limits" in found[0]
    assert "every claim for a part of a GPU waits" in found[1]


def test_enforcer_that_came_and_went_again_has_another_event() -> None:
    node = Watched()

    with capture_logs() as logs:
        for signs in (NO_HYPERVISOR, ALIVE, NO_HYPERVISOR):
            node.look(signs)

    assert len(node.events.written) == 2
    assert [line["event"] for line in logs] == [
        *("enforcer_not_seen", "enforcer_seen", "enforcer_not_seen")
    ]


def test_live_enforcer_is_not_mentioned() -> None:
    node = Watched()

    with capture_logs() as logs:
        node.look(ALIVE)

    assert (logs, node.events.written) == ([], [])


def test_event_is_written_once_the_api_server_answers_and_signs_are_read_once_a_minute() -> None:
    node = Watched()
    node.events.away = True
    node.look(NO_LIMITER)
    node.look(NO_LIMITER, after_seconds=1)
    node.events.away = False

    node.look(NO_LIMITER, after_seconds=1)

    assert (len(node.events.written), node.signs.looks) == (1, 1)
