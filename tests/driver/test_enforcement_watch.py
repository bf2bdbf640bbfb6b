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
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.enforcers.hami_core import HamiCore
from tensorfusion_dra.enforcers.registered import NoEnforcer
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.core.claims.evidence import (
    Daemon,
    Evidence,
    EvidencePaths,
    FileEvidence,
    NodeEvidence,
    NodeEvidencePaths,
    SharedMemory,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.enforcement_watch import (
    CHECK_SECONDS,
    NODE_CHECK_SECONDS,
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


NO_LIMITER: Final = NodeEvidence(
    read_at=0.0,
    files=(FileEvidence(path="/libcuda_limiter.so", trouble="not found"),),
)
NO_HYPERVISOR: Final = NodeEvidence(read_at=0.0, asked=("device plugin: not found",))
ALIVE: Final = NodeEvidence(read_at=0.0, hypervisor="device plugin answers")


class SignsInMemory:
    """Signs of a hypervisor that serves every pod, until a test changes something."""

    def __init__(self) -> None:
        self.heartbeat = HEARTBEAT
        self.processes = 1
        self.found = True
        self.trouble_of_daemon = ""
        self.read: list[EvidencePaths] = []
        self.node = ALIVE
        self.node_checks = 0

    def of_claim(self, paths: EvidencePaths) -> Evidence:
        self.read.append(paths)
        memory = SharedMemory(
            path=paths.shared_memory,
            found=self.found,
            heartbeat=self.heartbeat,
            limits={"GPU-0": limit(25, 20)},
            processes=self.processes,
        )
        daemon = Daemon(path=paths.socket, trouble=self.trouble_of_daemon)
        return Evidence(read_at=HEARTBEAT, shared_memory=memory, daemon=daemon)

    def of_node(self, paths: NodeEvidencePaths) -> NodeEvidence:
        self.node_checks += 1
        return self.node


class Setup:
    """A watch with a clock that a test moves; each Setup on one folder is one process."""

    def __init__(
        self,
        folder: Path,
        enforcers: Mapping[str, Enforcer] = ENFORCERS,
        *,
        is_required: bool = False,
    ) -> None:
        self.seconds = 0.0
        self.evidence = SignsInMemory()
        self.events = EventsInMemory()
        self.excess: list[str] = []
        self.reported: list[str] = []
        self.announcer = EnforcementAnnouncer(self.events)
        self.node = NodeEnforcer(
            self.evidence,
            {"tensor-fusion": ENFORCERS["tensor-fusion"]},
            {"tensor-fusion": NodeEvidencePaths(enforcer="tensor-fusion")},
            is_auto=False,
            is_required=is_required,
            now=self.now,
            clock=lambda: self.seconds,
        )
        self.watch = EnforcementWatch(
            self.evidence,
            enforcers,
            SavedState(folder, saved_state.LIMITS),
            clock=lambda: self.seconds,
            now=self.now,
            excess=lambda _: self.excess,
        )

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def check(self, after_seconds: float = CHECK_SECONDS) -> None:
        self.seconds += after_seconds
        self.watch.check(lambda claim: self.reported.append(claim.ref.name), self.announcer)
        self.announcer.write_events()

    def check_node(self, evidence: NodeEvidence, after_seconds: float = NODE_CHECK_SECONDS) -> None:
        self.seconds += after_seconds
        self.evidence.node = evidence
        self.node.check(self.events)

    def states(self, claim: PreparedClaim = CLAIM) -> list[str]:
        current = self.watch.current(claim)
        return [f"{each.verdict.state} {each.verdict.reason}" for each in current]

    def told(self) -> tuple[int, int, int]:
        """Return the numbers of statuses, warnings and other Events so far."""
        return len(self.reported), len(self.events.written), len(self.events.noted)

    def prepare(self, *claims: PreparedClaim) -> None:
        """Prepare claims and write their statuses."""
        for claim in claims or (CLAIM,):
            self.watch.note(claim)
            self.watch.current(claim)


def named(name: str, **changes: Any) -> PreparedClaim:
    ref = ClaimRef(namespace="team-a", name=name, uid=f"uid-{name}")
    pod = replace(POD, name=f"pod-{name}", uid=f"pod-uid-{name}")
    return replace(CLAIM, **{"ref": ref, "pods": (pod,), **changes})


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


STALE: Final = HEARTBEAT - 100
ENFORCED: Final = "Enforced LimiterActive"
NO_PROCESS: Final = "Unknown NoProcessYet"
STARTING: Final = "Unknown Starting"
NO_HEARTBEAT: Final = "NotEnforced HeartbeatStale"
NO_MEMORY: Final = "NotEnforced SharedMemoryMissing"


@pytest.mark.parametrize(
    ("first", "steps"),
    [
        pytest.param(
            ({}, ENFORCED),
            [(10, {}, ENFORCED, 0, (0, 0, 0))],
            id="the first verdict goes with the first status",
        ),
        pytest.param(
            ({"processes": 0}, NO_PROCESS),
            [
                (10, {"processes": 1}, ENFORCED, 10, (1, 0, 0)),
                (10, {}, ENFORCED, 10, (1, 0, 0)),
                (60, {}, ENFORCED, 10, (1, 0, 0)),
            ],
            id="a changed verdict is reported once",
        ),
        pytest.param(
            ({}, ENFORCED),
            [
                (60, {"heartbeat": STALE}, NO_HEARTBEAT, 60, (1, 1, 0)),
                (
                    60,
                    {"heartbeat": HEARTBEAT, "processes": 0},
                    NO_PROCESS,
                    120,
                    (2, 1, 0),
                ),
                (60, {"processes": 1}, ENFORCED, 180, (3, 1, 1)),
            ],
            id="a warning remains while the state is unknown",
        ),
        pytest.param(
            ({"processes": 0}, NO_PROCESS),
            [
                (60, {"processes": 1}, ENFORCED, 60, (1, 0, 0)),
                (10, {"heartbeat": STALE}, NO_HEARTBEAT, 70, (2, 1, 0)),
                (59, {"heartbeat": HEARTBEAT}, NO_HEARTBEAT, 70, (2, 1, 0)),
                (1, {}, ENFORCED, 130, (3, 1, 1)),
            ],
            id="limits that hold no longer are told at once, the rest once a minute",
        ),
        pytest.param(
            ({}, ENFORCED),
            [
                (60, {"heartbeat": STALE}, NO_HEARTBEAT, 60, (1, 1, 0)),
                (60, {"found": False}, NO_MEMORY, 60, (2, 1, 0)),
            ],
            id="the transition time is that of the state and not of its reason",
        ),
        pytest.param(
            ({"found": False}, STARTING),
            [
                (29, {}, STARTING, 0, (0, 0, 0)),
                (1, {}, NO_MEMORY, 30, (1, 1, 0)),
            ],
            id="missing shared memory means nothing for thirty seconds",
        ),
    ],
)
def test_verdicts_over_time(
    setup: Setup,
    first: tuple[dict[str, Any], str],
    steps: list[tuple[float, dict[str, Any], str, float, tuple[int, int, int]]],
) -> None:
    vars(setup.evidence).update(first[0])
    setup.prepare()
    assert setup.states() == [first[1]]
    for seconds, changes, state, since, told in steps:
        vars(setup.evidence).update(changes)

        setup.check(seconds)

        assert (setup.states(), setup.told()) == ([state], told)
        (current,) = setup.watch.current(CLAIM)
        assert current.since == START + timedelta(seconds=since)


def test_dead_hypervisor_is_logged_and_told_to_the_pod(setup: Setup) -> None:
    setup.prepare()
    setup.evidence.heartbeat = STALE

    with capture_logs() as logs:
        setup.check(60)
        setup.evidence.heartbeat = HEARTBEAT
        setup.check(60)

    assert [(line["event"], line["reason"]) for line in logs] == [
        ("limits_not_enforced", "HeartbeatStale"),
        ("limits_enforced", "LimiterActive"),
    ]
    ((reason, text),) = setup.events.written
    assert reason == "LimitsNotEnforced"
    assert text.startswith("claim a: /run/tensor-fusion/shm/team-a/trainer-0/shm: the last heartbe")
    assert [reason for reason, _ in setup.events.noted] == ["LimitsEnforced"]
    assert setup.events.pods == [POD, POD]


def test_advisory_limits_are_in_the_status_and_no_event_on_the_pod(tmp_path: Path) -> None:
    setup = Setup(tmp_path, {"none": NoEnforcer()})
    claim = replace(CLAIM, enforcer="none")
    setup.prepare(claim)

    setup.check(60)

    assert setup.states(claim) == ["NotEnforced NoEnforcer"]
    assert setup.told() == (0, 0, 0)


def test_enforcer_that_comes_and_goes_is_reported_twice_a_minute(setup: Setup) -> None:
    setup.prepare()
    for index in range(60):
        setup.evidence.heartbeat = HEARTBEAT - 100 * (index % 2)
        setup.check()

    assert len(setup.reported) <= 20  # within ten minutes


def test_changed_limits_have_thirty_seconds_to_arrive(setup: Setup) -> None:
    setup.prepare()
    setup.check(60)

    setup.watch.note(replace(CLAIM, shares=(prepared_share(0, limit(10, 10)),)))
    setup.check()
    assert setup.states() == [STARTING]

    setup.check(60)
    assert setup.states() == ["NotEnforced LimitsDiffer"]


def test_simulated_claim_is_unknown_until_it_is_seen_over_its_limit(setup: Setup) -> None:
    claim = prepared_claim(simulated_share(0, limit(25, 20)), enforcer="tensor-fusion")
    setup.prepare(claim)

    setup.check()
    before = setup.states(claim)
    setup.excess = ["GPU-0: found 21Gi"]
    setup.check()

    assert before == ["Unknown SimulatedGPU"]
    assert setup.states(claim) == ["NotEnforced LimitExceeded"]
    assert setup.reported == ["a"]


def test_share_over_its_limit_is_not_enforced_whatever_its_limiter_says(setup: Setup) -> None:
    setup.prepare(CLAIM)
    setup.check()
    before = setup.states()
    setup.excess = ["GPU-0: found 21Gi"]
    setup.check()
    over = setup.states()
    setup.excess = [""]
    setup.check(after_seconds=60)

    assert before == ["Enforced LimiterActive"]
    assert over == ["NotEnforced LimitExceeded"]
    assert setup.states() == ["Enforced LimiterActive"]
    assert setup.events.written == [("LimitsNotEnforced", "claim a: GPU-0: found 21Gi")]


def test_one_mps_daemon_is_asked_once_for_all_claims(setup: Setup) -> None:
    claims = [named(name, enforcer="mps") for name in "abc"]
    setup.prepare(*claims)
    setup.evidence.read.clear()
    setup.evidence.trouble_of_daemon = "nobody listens"

    setup.check()

    assert len(setup.evidence.read) == 1
    assert setup.reported == ["a", "b", "c"]


def test_claim_with_signs_of_its_own_beside_the_daemon_is_read_itself(tmp_path: Path) -> None:
    class WithLibrary(Mps):
        def evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
            files = ("/libvgpu.so",) if claim.ref.name == "b" else ()
            return replace(super().evidence_paths(claim), files=files)

    setup = Setup(tmp_path, {"mps": WithLibrary()})
    setup.prepare(*(named(name, enforcer="mps") for name in "abc"))
    setup.evidence.read.clear()

    setup.check()

    assert [paths.files for paths in setup.evidence.read] == [(), ("/libvgpu.so",)]


def test_claims_of_one_pod_are_judged_together(setup: Setup) -> None:
    half = prepared_share(0, limit(10, 10))
    claims = [named(name, shares=(half,), pods=(POD,)) for name in "ab"]
    for claim in claims:
        setup.watch.note(claim)
    setup.seconds = 60

    assert setup.states(claims[0]) == ["NotEnforced LimitsDiffer"]  # 25 % of 10 % and 10 %

    setup.watch.note(named("c", shares=(prepared_share(0, limit(5, 5)),), pods=(POD,)))
    setup.check()
    assert setup.states(claims[0]) == ["Enforced LimiterActive"]


def test_unprepared_claim_is_forgotten(setup: Setup) -> None:
    setup.prepare()
    setup.watch.forget(CLAIM.ref.uid)
    setup.evidence.heartbeat -= 100
    setup.check()

    assert (setup.reported, setup.states()) == ([], [])


def test_restart_reports_only_what_changed_meanwhile(setup: Setup, tmp_path: Path) -> None:
    setup.prepare(named("a"), named("b"))
    setup.check()

    restarted = Setup(tmp_path)
    restarted.watch.follow([named("a"), named("b")])
    restarted.check()
    assert (restarted.reported, restarted.events.written) == ([], [])

    restarted = Setup(tmp_path)
    restarted.watch.follow([named("a"), named("b")])
    restarted.evidence.found = False
    restarted.check()
    assert restarted.reported == ["a", "b"]
    assert restarted.states(named("a")) == ["NotEnforced SharedMemoryMissing"]


def test_restart_does_not_repeat_a_warning_and_withdraws_it(setup: Setup, tmp_path: Path) -> None:
    setup.prepare()
    setup.evidence.found = False
    setup.check(60)
    assert len(setup.events.written) == 1

    restarted = Setup(tmp_path)
    restarted.watch.follow([CLAIM])
    restarted.evidence.found = False
    restarted.check()
    restarted.evidence.found = True
    restarted.check()

    assert (restarted.events.written, len(restarted.events.noted)) == ([], 1)
    assert restarted.reported == ["a"]


@pytest.mark.parametrize("content", ["", "[]", '{"uid-a": [{}]}', '{"uid-a": 3}', "{"])
def test_without_a_usable_file_each_status_is_written_once(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "limits.json").write_text(content)
    setup = Setup(tmp_path)
    setup.watch.follow([CLAIM])

    setup.check()
    setup.check()

    assert setup.reported == ["a"]


def test_claim_that_another_instance_unprepared_is_dropped_at_the_second_reading(
    setup: Setup,
) -> None:
    setup.prepare()

    setup.watch.follow([])
    assert setup.states() != []
    setup.watch.follow([])
    assert setup.states() == []


def test_events_that_cannot_be_written_wait(setup: Setup) -> None:
    claims = [named(f"c{number}") for number in range(12)]
    setup.prepare(*claims)
    setup.events.away = True
    setup.evidence.heartbeat -= 100
    setup.check(60)
    assert setup.events.written == []

    setup.events.away = False
    written = []
    for _ in range(3):
        setup.check()
        written.append(len(setup.events.written))

    assert written == [5, 10, 12]


@pytest.mark.parametrize(
    ("evidence", "is_required", "consequence"),
    [
        (NO_LIMITER, False, "every claim for a part of a GPU waits"),
        (NO_HYPERVISOR, True, "every claim for a part of a GPU waits"),
        (NO_HYPERVISOR, False, "claims are prepared, but nothing keeps them within their limits"),
    ],
)
def test_missing_enforcer_has_one_event_with_consequence_and_cures(
    tmp_path: Path, evidence: NodeEvidence, is_required: bool, consequence: str
) -> None:
    setup = Setup(tmp_path, is_required=is_required)

    with capture_logs() as logs:
        for _ in range(3):
            setup.check_node(evidence)

    ((reason, text),) = setup.events.written
    assert reason == "EnforcerMissing"
    assert text.startswith("enforcer tensor-fusion: ")
    assert consequence in text
    assert text.endswith(presence.cure("tensor-fusion"))
    assert len(text.encode()) < 1024  # of an Event's note
    assert setup.events.pods == [None]
    assert [line["event"] for line in logs] == ["enforcer_not_seen"]
    current = setup.node.current()
    assert current is not None
    first_check = START + timedelta(seconds=NODE_CHECK_SECONDS)
    assert (current.verdict.state, current.since) == ("NotEnforced", first_check)


def test_enforcer_that_came_and_went_again_has_another_event(setup: Setup) -> None:
    with capture_logs() as logs:
        for evidence in (ALIVE, NO_HYPERVISOR, ALIVE, NO_HYPERVISOR):
            setup.check_node(evidence)

    assert len(setup.events.written) == 2
    assert [line["event"] for line in logs] == [
        *("enforcer_not_seen", "enforcer_seen", "enforcer_not_seen")
    ]


def test_event_is_written_once_the_api_server_answers_and_signs_are_read_once_a_minute(
    setup: Setup,
) -> None:
    setup.events.away = True
    setup.check_node(NO_LIMITER)
    setup.check_node(NO_LIMITER, after_seconds=1)
    setup.events.away = False

    setup.check_node(NO_LIMITER, after_seconds=1)

    assert (len(setup.events.written), setup.evidence.node_checks) == (1, 1)
