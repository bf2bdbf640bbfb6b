"""Watch over the limits of prepared claims and over the node's enforcer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer, Sign
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.driver.enforcement_watch import (
    CHECK_SECONDS,
    EnforcementAnnouncer,
    EnforcementWatch,
)
from tensorfusion_dra.enforcers import choice
from tensorfusion_dra.enforcers.choice import CHECK_SECONDS as NODE_CHECK_SECONDS
from tensorfusion_dra.enforcers.choice import NodeEnforcer
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
from tests.support.signs import ALIVE, NO_HYPERVISOR, NO_LIMITER, signing

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

    def __init__(
        self,
        folder: Path,
        enforcers: Mapping[str, Enforcer] | None = None,
        *,
        is_required: bool = False,
    ) -> None:
        self.seconds = 0.0
        self.evidence = Hypervisor()
        self.sign, self.node_checks = ALIVE, 0
        self.events = EventsInMemory()
        self.excess: list[str] = []
        self.reported: list[str] = []
        self.announcer = EnforcementAnnouncer(self.events)
        self.node = NodeEnforcer(
            {"tensor-fusion": signing(TensorFusion(), self._sign)},
            is_auto=False,
            is_required=is_required,
            now=self.now,
            clock=lambda: self.seconds,
        )
        self.watch = EnforcementWatch(
            enforcers or {"tensor-fusion": self.evidence},
            SavedState(folder, saved_state.LIMITS),
            clock=lambda: self.seconds,
            now=self.now,
            excess=lambda _: self.excess,
        )

    def _sign(self) -> Sign:
        self.node_checks += 1
        return self.sign

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def check(self, after_seconds: float = CHECK_SECONDS) -> None:
        self.seconds += after_seconds
        self.watch.check(lambda claim: self.reported.append(claim.ref.name), self.announcer)
        self.announcer.write_events()

    def check_node(self, sign: Sign, after_seconds: float = NODE_CHECK_SECONDS) -> None:
        self.seconds += after_seconds
        self.sign = sign
        self.node.check(self.events.warn)

    def states(self, claim: PreparedClaim = CLAIM) -> list[str]:
        current = self.watch.current(claim)
        return [f"{each.verdict.state} {each.verdict.reason}" for each in current]

    def told(self) -> tuple[int, int, int]:
        """Return the numbers of statuses, warnings and other Events so far."""
        return len(self.reported), len(self.events.written), len(self.events.noted)

    def prepare(self, *claims: PreparedClaim) -> None:
        """Prepare claims and write their statuses."""
        for claim in claims or (CLAIM,):
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


def test_changed_limits_have_thirty_seconds_to_arrive(setup: Setup) -> None:
    setup.prepare()
    setup.check(60)

    setup.watch.watch(replace(CLAIM, shares=(prepared_share(0, limit(10, 10)),)))
    setup.check()
    assert setup.states() == [STARTING]

    setup.check(60)
    assert setup.states() == ["NotEnforced LimitsDiffer"]


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
    setup.prepare()
    setup.watch.forget(CLAIM.ref.uid)
    setup.evidence.heartbeat -= 100
    setup.check()

    assert (setup.reported, setup.states()) == ([], [])


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


@pytest.mark.parametrize("content", ["", "[]", '{"uid-a": [{}]}', '{"uid-a": 3}', "{"])
def test_without_a_usable_file_each_status_is_written_once(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "limits.json").write_text(content)
    setup = Setup(tmp_path)
    setup.watch.sync([CLAIM])

    setup.check()
    setup.check()

    assert setup.reported == ["a"]


def test_claim_that_another_instance_unprepared_is_dropped_at_the_second_reading(
    setup: Setup,
) -> None:
    setup.prepare()

    setup.watch.sync([])
    assert setup.states() != []
    setup.watch.sync([])
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
    ("sign", "is_required", "consequence"),
    [
        (NO_LIMITER, False, "every claim for a part of a GPU waits"),
        (NO_HYPERVISOR, True, "every claim for a part of a GPU waits"),
        (NO_HYPERVISOR, False, "claims are prepared, but nothing keeps them within their limits"),
    ],
)
def test_missing_enforcer_has_one_event_with_consequence_and_cures(
    tmp_path: Path, sign: Sign, is_required: bool, consequence: str
) -> None:
    setup = Setup(tmp_path, is_required=is_required)

    with capture_logs() as logs:
        for _ in range(3):
            setup.check_node(sign)

    ((reason, text),) = setup.events.written
    assert reason == "EnforcerMissing"
    assert text.startswith("enforcer tensor-fusion: ")
    assert consequence in text
    assert text.endswith(choice.remedy(TensorFusion()))
    assert len(text.encode()) < 1024  # of an Event's note
    assert setup.events.pods == [None]
    assert [line["event"] for line in logs] == ["enforcer_not_seen"]
    current = setup.node.current
    assert current is not None
    first_check = START + timedelta(seconds=NODE_CHECK_SECONDS)
    assert (current.verdict.state, current.since) == ("NotEnforced", first_check)


def test_enforcer_that_came_and_went_again_has_another_event(setup: Setup) -> None:
    with capture_logs() as logs:
        for sign in (ALIVE, NO_HYPERVISOR, ALIVE, NO_HYPERVISOR):
            setup.check_node(sign)

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

    assert (len(setup.events.written), setup.node_checks) == (1, 1)
