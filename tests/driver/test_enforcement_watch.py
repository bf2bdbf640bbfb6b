"""Watch over the limits of prepared claims and over the node's enforcer."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.driver.enforcement_watch import (
    CHECK_SECONDS,
    EnforcementAnnouncer,
    EnforcementWatch,
)
from tensorfusion_dra.enforcers.none import NoEnforcer
from tensorfusion_dra.enforcers.tensor_fusion import marks, soft_verdict
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import SharedMemory
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

CLAIM: Final = prepared_claim(prepared_share(0, limit(25, 20)), enforcer="tensor-fusion")


START: Final = datetime(2026, 3, 1, tzinfo=UTC)


HEARTBEAT: Final = 1_700_000_000


class Hypervisor(TensorFusion):
    """A hypervisor that serves every pod, until a test changes something."""

    def __init__(self) -> None:
        super().__init__()
        self.heartbeat = HEARTBEAT
        self.processes = 1
        self.found = True

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        memory = SharedMemory(
            path=f"{self.needs(claim).folders[0].path}/shm",
            found=self.found,
            heartbeat=self.heartbeat,
            limits={"GPU-0": limit(25, 20)},
            processes=self.processes,
        )
        worker = marks.of_pod(claim.pods[0], [claim, *others])
        assert worker is not None
        return [
            soft_verdict.of_card(
                each.gpu_uuid,
                worker.limits[each.gpu_uuid],
                memory,
                read_at=HEARTBEAT,
                limiter_reason="",
                is_new=is_new,
            )
            for each in shares
        ]


class Setup:
    """A watch with a clock that a test moves; each Setup on one folder is one process."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0
        self.evidence = Hypervisor()
        self.events = EventsInMemory()
        self.excess: list[str] = []
        self.reported: list[str] = []
        self.announcer = EnforcementAnnouncer(self.events)
        self.watch = EnforcementWatch(
            {"tensor-fusion": self.evidence, "none": NoEnforcer()},
            SavedState(folder, saved_state.LIMITS),
            clock=lambda: self.seconds,
            now=lambda: START + timedelta(seconds=self.seconds),
            excess=lambda _: self.excess,
        )

    def check(self, after_seconds: float = CHECK_SECONDS) -> None:
        self.seconds += after_seconds
        self.watch.check(lambda claim: self.reported.append(claim.ref.name), self.announcer)
        self.announcer.write_events()

    def states(self, claim: PreparedClaim = CLAIM) -> list[str]:
        current = self.watch.current(claim)
        return [f"{each.verdict.state} {each.verdict.reason}" for each in current]

    def told(self) -> tuple[int, int, int]:
        """Return the numbers of statuses, warnings and other Events so far."""
        return len(self.reported), len(self.events.written), len(self.events.noted)

    def prepare(self, *claims: PreparedClaim) -> None:
        """Prepare claims and write their statuses."""
        for claim in claims:
            self.watch.watch(claim)
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
                (60, {"heartbeat": HEARTBEAT, "processes": 0}, NO_PROCESS, 120, (2, 1, 0)),
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
    setup.prepare(CLAIM)
    assert setup.states() == [first[1]]
    for seconds, changes, state, since, told in steps:
        vars(setup.evidence).update(changes)

        setup.check(seconds)

        assert (setup.states(), setup.told()) == ([state], told)
        (current,) = setup.watch.current(CLAIM)
        assert current.since == START + timedelta(seconds=since)


def test_dead_hypervisor_is_logged_and_told_to_the_pod(setup: Setup) -> None:
    setup.prepare(CLAIM)
    with capture_logs() as logs:
        for heartbeat in (STALE, HEARTBEAT):
            setup.evidence.heartbeat = heartbeat
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


def test_advisory_limits_are_in_the_status_and_no_event_on_the_pod(setup: Setup) -> None:
    claim = replace(CLAIM, enforcer="none")
    setup.prepare(claim)

    setup.check(60)

    assert (setup.states(claim), setup.told()) == (["NotEnforced NoEnforcer"], (0, 0, 0))


def test_changed_limits_have_thirty_seconds_to_arrive(setup: Setup) -> None:
    setup.prepare(CLAIM)
    setup.check(60)

    setup.watch.watch(replace(CLAIM, shares=(prepared_share(0, limit(10, 10)),)))
    seen = []
    for seconds in (CHECK_SECONDS, 60):
        setup.check(seconds)
        seen += setup.states()

    assert seen == [STARTING, "NotEnforced LimitsDiffer"]


@pytest.mark.parametrize(
    ("share", "calm"),
    [(CLAIM.shares[0], ENFORCED), (simulated_share(0, limit(25, 20)), "Unknown SimulatedGPU")],
)
def test_share_over_its_limit_is_not_enforced_whatever_its_limiter_says(
    setup: Setup, share: PreparedShare, calm: str
) -> None:
    claim = replace(CLAIM, shares=(share,))
    setup.prepare(claim)
    states = []
    for excess in ("", "GPU-0: found 21Gi", ""):
        setup.excess = [excess]
        setup.check(after_seconds=60)
        states += setup.states(claim)

    assert states == [calm, "NotEnforced LimitExceeded", calm]
    assert setup.reported == ["a", "a"]
    assert setup.events.written == [("LimitsNotEnforced", "claim a: GPU-0: found 21Gi")]


def test_claims_of_one_pod_are_judged_together(setup: Setup) -> None:
    half = prepared_share(0, limit(10, 10))
    claims = [named(name, shares=(half,), pods=(POD,)) for name in "ab"]
    for claim in claims:
        setup.watch.watch(claim)
    setup.seconds = 60

    assert setup.states(claims[0]) == ["NotEnforced LimitsDiffer"]  # 25 % of 10 % and 10 %

    setup.watch.watch(named("c", shares=(prepared_share(0, limit(5, 5)),), pods=(POD,)))
    setup.check()
    assert setup.states(claims[0]) == ["Enforced LimiterActive"]


def test_unprepared_claim_is_forgotten(setup: Setup) -> None:
    setup.prepare(CLAIM)
    setup.watch.forget(CLAIM.ref.uid)
    setup.evidence.heartbeat = STALE
    setup.check()

    assert (setup.reported, setup.states()) == ([], [])


def test_claim_that_another_instance_unprepared_is_dropped_at_the_second_reading(
    setup: Setup,
) -> None:
    setup.prepare(CLAIM)

    setup.watch.sync([])
    assert setup.states() != []
    setup.watch.sync([])
    assert setup.states() == []


def test_restart_reports_only_what_changed_meanwhile_and_repeats_no_warning(
    setup: Setup, tmp_path: Path
) -> None:
    claims = [named("a"), named("b")]
    setup.prepare(*claims)
    setup.check()
    told = []
    for found in (True, False, False, True):
        restarted = Setup(tmp_path)
        restarted.watch.sync(claims)
        restarted.evidence.found = found
        restarted.check()
        told.append(restarted.told())

    assert told == [(0, 0, 0), (2, 2, 0), (0, 0, 0), (2, 0, 2)]


@pytest.mark.parametrize("content", [None, "", "[]", '{"uid-a": [{}]}', '{"uid-a": 3}', "{"])
def test_without_a_usable_file_each_status_is_written_once(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "limits.json").write_text(content)
    setup = Setup(tmp_path)
    setup.watch.sync([CLAIM])

    setup.check()
    setup.check()

    assert setup.reported == ["a"]


def test_events_that_cannot_be_written_wait(setup: Setup) -> None:
    setup.prepare(*(named(f"c{number}") for number in range(12)))
    setup.events.away = True
    setup.evidence.heartbeat = STALE
    written = []
    for seconds in (60, CHECK_SECONDS, CHECK_SECONDS, CHECK_SECONDS):
        setup.check(seconds)
        written.append(len(setup.events.written))
        setup.events.away = False

    assert written == [0, 5, 10, 12]
