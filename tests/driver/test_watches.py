"""Watches over prepared claims: their limits, their use of cards, and waits for an enforcer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.use import Container, GpuProcess
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.errors import ClaimError, RetryableError, StatusError, UnreadableError
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver import use_watch
from tensorfusion_dra.driver.binding_conditions import LISTS, BindingConditions
from tensorfusion_dra.driver.enforcement_watch import (
    CHECK_SECONDS,
    EnforcementAnnouncer,
    EnforcementWatch,
)
from tensorfusion_dra.driver.use_watch import UseWatch
from tensorfusion_dra.enforcers.none import NoEnforcer
from tensorfusion_dra.enforcers.tensor_fusion import marks, soft_verdict
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import SharedMemory
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState
from tests.support.builders import stored_claims
from tests.support.builders.prepared_claims import (
    POD,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.enforcer_choice import NOW, Chooser
from tests.support.logs import capture_logs
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

    def __init__(self, folder: Path, *claims: PreparedClaim) -> None:
        self.records = {claim.ref.uid: claim for claim in claims}
        self.can_read = True
        self.seconds = 0.0
        self.evidence = Hypervisor()
        self.events = EventsInMemory()
        self.excess: list[str] = []
        self.reported: list[str] = []
        self.announcer = EnforcementAnnouncer(self.events)
        self.watch = EnforcementWatch(
            {"tensor-fusion": self.evidence, "none": NoEnforcer()},
            SavedState(folder, saved_state.LIMITS),
            records=self.read,
            clock=lambda: self.seconds,
            now=lambda: START + timedelta(seconds=self.seconds),
            excess=lambda _: self.excess,
        )

    def read(self) -> list[PreparedClaim]:
        if not self.can_read:
            raise RetryableError("claims.lock: held by another instance for 5 s")
        return list(self.records.values())

    def check(self, after_seconds: float = CHECK_SECONDS) -> None:
        self.seconds += after_seconds
        self.watch.check(lambda claim: self.reported.append(claim.ref.name), self.announcer)
        self.announcer.write_events()

    def states(self, claim: PreparedClaim = CLAIM) -> list[str]:
        return [f"{each.verdict.state} {each.verdict.reason}" for each in self.watch.current(claim)]

    def told(self) -> tuple[int, int, int]:
        """Return the numbers of statuses, warnings and other Events so far."""
        return len(self.reported), len(self.events.written), len(self.events.noted)

    def put(self, *claims: PreparedClaim) -> None:
        """Record claims."""
        self.records |= {claim.ref.uid: claim for claim in claims}

    def prepare(self, *claims: PreparedClaim) -> None:
        """Record claims and write their statuses."""
        for claim in claims:
            self.put(claim)
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

    setup.put(replace(CLAIM, shares=(prepared_share(0, limit(10, 10)),)))
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
    setup.prepare(*claims)
    setup.check(60)

    assert setup.states(claims[0]) == ["NotEnforced LimitsDiffer"]  # 25 % of 10 % and 10 %

    setup.put(named("c", shares=(prepared_share(0, limit(5, 5)),), pods=(POD,)))
    setup.check(60)
    assert setup.states(claims[0]) == ["Enforced LimiterActive"]


def test_unprepared_claim_is_forgotten(setup: Setup) -> None:
    setup.prepare(CLAIM)
    setup.records.clear()
    setup.evidence.heartbeat = STALE
    setup.check()

    assert (setup.reported, setup.states()) == ([], [])


def test_claims_of_the_last_reading_are_checked_while_the_records_cannot_be_read(
    setup: Setup,
) -> None:
    setup.prepare(CLAIM)
    setup.check()
    setup.can_read = False
    setup.evidence.heartbeat = STALE
    setup.check(60)

    assert setup.reported == ["a"]


def test_restart_reports_only_what_changed_meanwhile_and_repeats_no_warning(
    setup: Setup, tmp_path: Path
) -> None:
    claims = [named("a"), named("b")]
    setup.prepare(*claims)
    setup.check()
    told = []
    for found in (True, False, False, True):
        restarted = Setup(tmp_path, *claims)
        restarted.evidence.found = found
        restarted.check()
        told.append(restarted.told())

    assert told == [(0, 0, 0), (2, 2, 0), (0, 0, 0), (2, 0, 2)]


def test_file_keeps_the_claim_whose_limiter_was_seen_last_after_the_claim_ended(
    setup: Setup, tmp_path: Path
) -> None:
    seen = []
    for name, processes in (("idle", 0), ("first", 1), ("last", 1)):
        setup.evidence.processes = processes
        setup.prepare(named(name))
        setup.check()
        setup.records.clear()
        setup = Setup(tmp_path)
        setup.check()
        kept = json.loads((tmp_path / "limits.json").read_text())
        seen.append(kept.get("limiterSeen", {}).get("claim"))

    assert seen == [None, "team-a/first", "team-a/last"]


@pytest.mark.parametrize("content", [None, "", "[]", '{"uid-a": [{}]}', '{"uid-a": 3}', "{"])
def test_without_a_usable_file_each_status_is_written_once(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "limits.json").write_text(content)
    setup = Setup(tmp_path, CLAIM)

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


# Claims that wait at the scheduler for the node's enforcer get their binding conditions

Json = dict[str, Any]


def result(device: str = "gpu-0", pool: str = "default/node-01", **fields: Any) -> Json:
    """Return an allocation of a device that carried the condition."""
    return {
        "request": "gpu",
        "driver": names.DRIVER,
        "pool": pool,
        "device": device,
        "bindingConditions": [names.BINDING_READY],
        "bindingFailureConditions": [names.BINDING_FAILED],
        **fields,
    }


def claim(name: str, *results: Json, true: str = "") -> Json:
    """Return a stored claim; a condition may be True of its devices already."""
    entries = [
        {
            **{key: each[key] for key in ("driver", "pool", "device", "shareID") if key in each},
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": true, "status": "True"},
            ],
        }
        for each in results
        if true
    ]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "status": {"allocation": {"devices": {"results": list(results)}}, "devices": entries},
    }


class Node:
    """A node that has the MPS daemon or not, and a cluster with claims."""

    def __init__(self, *claims: Json) -> None:
        self.chooser = Chooser("mps", wait_seconds=90)
        self.claims = claims
        self.lists = 0
        self.is_away = False
        self.refused: dict[str, RetryableError] = {}
        self.written: dict[str, Sequence[Mapping[str, Any]]] = {}
        self.conditions = BindingConditions(
            self.chooser.chooser, self.listed, self, node_name="node-01", now=lambda: NOW
        )

    def listed(self, keep: Projection) -> Sequence[Json]:
        self.lists += 1
        if self.is_away:
            raise RetryableError("no API server")
        return [found for each in self.claims if (found := projected(each, keep))]

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        if fault := self.refused.get(ref.name):
            raise fault
        self.written[ref.name] = devices
        return True

    def settle(self, *present: str, times: int = 1, after: float = 0) -> int:
        """Return how often the claims were listed."""
        before = self.lists
        for _ in range(times):
            self.chooser.check(*present, after=after)
            self.conditions.settle()
        return self.lists - before


@pytest.mark.parametrize(
    ("fault", "written", "lists"),
    [
        (StatusError("Request entity too large", 413), ["b", "c"], LISTS),
        (RetryableError("no answer"), [], 20),
    ],
)
def test_claim_whose_status_is_refused_keeps_no_other_waiting(
    fault: RetryableError, written: list[str], lists: int
) -> None:
    node = Node(*(claim(name, result()) for name in "abc"))
    node.refused["a"] = fault
    node.settle()
    node.settle("mps", after=100)
    node.lists = 0

    node.settle("mps", times=20)

    assert sorted(node.written) == written
    assert node.lists <= lists


@pytest.mark.parametrize(
    ("present", "kind", "reason", "message"),
    [
        (["mps"], names.BINDING_READY, "EnforcerReady", "node node-01 has enforcer mps"),
        (
            *([], names.BINDING_FAILED, "EnforcerMissing"),
            "node node-01 had no enforcer for enforcer-wait-seconds",
        ),
    ],
)
def test_claim_that_waits_gets_the_condition_for_each_device(
    present: list[str], kind: str, reason: str, message: str
) -> None:
    shared = result(shareID="share-0")
    node = Node(claim("a", shared, shared | {"request": "again"}, result("gpu-1")))
    node.settle()
    assert node.written == {}

    node.settle(*present, after=100)

    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-03-01T00:00:00Z",
    }
    of_device = {"driver": names.DRIVER, "pool": "default/node-01", "conditions": [condition]}
    assert node.written == {
        "a": [
            {**of_device, "device": "gpu-0", "shareID": "share-0"},
            {**of_device, "device": "gpu-1"},
        ]
    }


@pytest.mark.parametrize(
    ("stored", "present", "is_written"),
    [
        (claim("bound before", result(), true=names.BINDING_READY), ["mps"], False),
        (claim("runs", result(), true=names.BINDING_READY), [], False),
        (claim("failed before", result(), true=names.BINDING_FAILED), [], False),
        (claim("saved in time", result(), true=names.BINDING_FAILED), ["mps"], True),
        (claim("of another node", result(pool="default/node-02")), ["mps"], False),
        (claim("of another driver", result(driver="nic.example.com")), ["mps"], False),
        (claim("waits for no enforcer", result(bindingConditions=["a"])), ["mps"], False),
        (claim("never waited", result(bindingConditions=None)), ["mps"], False),
        ({"metadata": {"name": "not allocated"}}, ["mps"], False),
    ],
    ids=lambda each: each["metadata"]["name"] if isinstance(each, dict) else "",
)
def test_only_claims_that_wait_for_this_node_are_written(
    stored: Json, present: list[str], is_written: bool
) -> None:
    node = Node(stored)

    node.settle(*present)
    node.settle(*present, after=100)

    assert bool(node.written) == is_written


def test_claims_are_listed_a_few_times_after_a_change_and_never_while_pods_wait() -> None:
    node = Node()

    lists = [
        node.settle(*present, times=20, after=after)
        for present, after in ((["mps"], 0), ([], 0), ([], 100), (["mps"], 0))
    ]

    assert lists == [LISTS, 0, LISTS, 0]


def test_short_absence_that_only_a_prepare_saw_is_followed_by_lists() -> None:
    node = Node()
    node.settle("mps", times=20)
    node.chooser.seconds += 60
    assert (node.chooser.chosen(), node.chooser.chosen("mps")) == ("none", "mps")

    assert node.settle("mps", times=20) == LISTS


def test_list_that_fails_does_not_count() -> None:
    node = Node(claim("a", result()))
    node.is_away = True
    node.settle("mps", times=LISTS + 1)
    node.is_away = False

    assert node.settle("mps", times=20) == LISTS
    assert "a" in node.written


# The use of the cards: evidence, statuses, and processes without a share

TWO_CARDS: Final = prepared_claim(
    prepared_share(0, limit(50, 20)), prepared_share(1, limit(50, 20))
)


class Cards(Enforcer):
    """A watch with a clock that a test moves, over cards and counts that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cards: Mapping[str, Sequence[GpuProcess]] = {"GPU-0": [], "GPU-1": []}
        self.claims = [TWO_CARDS]
        self.events = EventsInMemory()
        self.reported: list[str] = []
        self.changes = 0
        self.fetched: list[str] = []
        self.late_pods: Sequence[str] = ()
        self.reason: Exception | None = None  # of the API server
        self.unreadable = ""
        self.counted: Mapping[tuple[str, str], int] = {}
        self.raised_claims: Mapping[str, int] = {}
        self.watch = UseWatch(
            self.processes,
            lambda: self.claims,
            self,
            {TWO_CARDS.enforcer: self},
            clock=lambda: self.seconds,
        )

    def used(self, claim: PreparedClaim) -> Mapping[tuple[str, str], int]:
        return self.counted

    def raised(self) -> Mapping[str, int]:
        return self.raised_claims

    def processes(self) -> Mapping[str, Sequence[GpuProcess]]:
        if self.unreadable:
            raise RetryableError(self.unreadable)
        return self.cards

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        del wait_seconds
        self.fetched.append(ref.uid)
        if self.reason:
            raise self.reason
        result = stored_claims.allocation_result("gpu-0", tflops=None, vram=None)
        stored = stored_claims.stored_claim(ref.name, result, uid=ref.uid)
        stored["status"]["reservedFor"] = [
            {"resource": "pods", "name": uid, "uid": uid} for uid in (POD.uid, *self.late_pods)
        ]
        return stored

    def check(self, *, times: int = 1) -> None:
        for _ in range(times):
            self.seconds += use_watch.CHECK_SECONDS
            self.watch.check(
                lambda claim: self.reported.append(claim.ref.uid), self.events, self.changed
            )

    def changed(self) -> None:
        self.changes += 1

    def use(self, gib: float, *, card: str = "GPU-0", pod: str = POD.uid, times: int = 1) -> None:
        """Have one process, of this pod or none, use the memory of a card at the next checks."""
        of = Container(pod_uid=pod, id="4f" * 32) if pod else None
        process = GpuProcess(pid=7, vram_bytes=int(gib * GIB), container=of, name="python")
        self.cards = {"GPU-0": [], "GPU-1": [], card: [process]}
        self.check(times=times)


@pytest.fixture
def cards() -> Cards:
    return Cards()


def test_idle_compute_that_is_lent_is_shown_at_most_once_a_minute(cards: Cards) -> None:
    counts = []
    for percent in (100, 0, 100, 0, 100, 0, 100):
        cards.raised_claims = {TWO_CARDS.ref.uid: percent}
        cards.use(5)
        counts.append(len(cards.reported))

    assert counts == [*[1] * 6, 1]
    cards.raised_claims = {}
    cards.check()
    (used, _) = cards.watch.shown(TWO_CARDS.ref.uid)
    assert (len(cards.reported), used and used.raised_percent) == (2, 0)


def test_share_is_over_its_limit_after_two_readings_in_a_row(cards: Cards) -> None:
    assert cards.watch.excess(TWO_CARDS) == ()
    seen = []
    for gib in (21, 19, 21, 21, 19):
        cards.use(gib)
        seen.append((cards.watch.excess(TWO_CARDS), cards.changes))

    text = (
        "GPU-0: found 21Gi of memory in use by 1 processes, expected at most 20Gi; nothing keeps "
        "it within its limit"
    )
    assert seen == [*[(["", ""], 0)] * 3, ([text, ""], 1), (["", ""], 2)]


def test_status_gets_a_notable_change_once_a_minute_until_the_claim_is_unprepared(
    cards: Cards,
) -> None:
    readings = round(use_watch.SHOWN_SECONDS / use_watch.CHECK_SECONDS)
    counts = []
    for gib, times in ((1, readings), (1.1, 3 * readings), *((2 + n, 1) for n in range(readings))):
        cards.use(gib, times=times)
        counts.append(len(cards.reported))

    assert counts == [1, 1, *[2] * readings]
    (shown, _) = cards.watch.shown(TWO_CARDS.ref.uid)
    assert shown is not None
    assert shown.vram_bytes == 2 * GIB

    cards.claims.clear()
    cards.check()
    assert cards.watch.shown(TWO_CARDS.ref.uid) == ()


def test_processes_without_a_share_get_one_event_for_each_card(cards: Cards) -> None:
    cards.events.away = True  # it waits for the API server
    with capture_logs() as logs:
        cards.use(1, pod="")
        cards.events.away = False
        cards.use(1, pod="", times=2)
        cards.use(1)
        cards.use(2, pod="")
        cards.use(1, pod="", card="GPU-1")

    text = "found processes outside of all shares: process 7 python uses 1024 MiB"
    assert cards.events.written == [
        ("ForeignProcesses", f"GPU-0: {text}"),
        ("ForeignProcesses", f"GPU-1: {text}"),
    ]
    logged = [each["uuid"] for each in logs if each["event"] == "foreign_processes"]
    assert logged == ["GPU-0", "GPU-1"]
    assert cards.watch.current().foreign["GPU-1"].processes == 1


@pytest.mark.parametrize(
    ("late_pods", "reason", "used_bytes"),
    [
        (["uid-late"], None, 3 * GIB),
        ([], None, 0),
        ([], ClaimError("no such claim"), 0),
    ],
    ids=["a pod that came later", "a pod of somebody else", "a claim that is gone"],
)
def test_claims_are_read_for_a_pod_that_no_record_names_until_the_api_server_answers(
    cards: Cards, late_pods: list[str], reason: Exception | None, used_bytes: int
) -> None:
    cards.reason = RetryableError("no answer")
    cards.use(3, pod="uid-late", times=2)
    assert cards.events.written == []

    cards.late_pods, cards.reason = late_pods, reason
    cards.check(times=3)

    current = cards.watch.current()
    used = current.shares[TWO_CARDS.ref.uid][0]
    assert cards.fetched == [TWO_CARDS.ref.uid] * 3
    assert (used.vram_bytes if used else 0) == used_bytes
    assert [*current.foreign] == ([] if used_bytes else ["GPU-0"])


def test_claim_that_cannot_be_read_hides_no_processes_of_another_card(cards: Cards) -> None:
    cards.reason = UnreadableError("found more than is read")
    cards.use(3, pod="uid-late")
    cards.use(1, pod="", card="GPU-1")
    (late,) = [
        GpuProcess(pid=8, vram_bytes=GIB, container=Container(pod_uid="uid-late", id="5f" * 32))
    ]
    cards.cards = {**cards.cards, "GPU-0": [late]}
    cards.events.written.clear()
    cards.watch = UseWatch(
        cards.processes,
        lambda: cards.claims,
        cards,
        {TWO_CARDS.enforcer: cards},
        clock=lambda: cards.seconds,
    )

    cards.check(times=2)

    assert [text.partition(":")[0] for _, text in cards.events.written] == ["GPU-1"]


def test_use_that_the_driver_counts_is_known_without_processes(cards: Cards) -> None:
    cards.unreadable = "no such PID namespace"
    cards.counted = {(POD.uid, "GPU-0"): 21 * GIB}

    cards.check(times=2)

    current = cards.watch.current()
    (first, second) = current.shares[TWO_CARDS.ref.uid]
    assert first is not None
    assert (first.vram_bytes, second, current.reason) == (21 * GIB, None, "no such PID namespace")
    assert cards.watch.excess(TWO_CARDS)[0].startswith("GPU-0: found 21Gi of memory in use")


def test_claim_works_while_its_kernels_are_seen_or_may_run(cards: Cards) -> None:
    assert cards.watch.working() is None
    of = Container(pod_uid=POD.uid, id="4f" * 32)
    idle = GpuProcess(pid=7, vram_bytes=GIB, container=of, name="python")
    busy = replace(idle, sm_percent=3)
    uid = TWO_CARDS.ref.uid
    found: list[tuple[Mapping[str, Sequence[GpuProcess]], set[str]]] = [
        ({"GPU-0": [], "GPU-1": [busy]}, {uid}),
        ({"GPU-0": [idle], "GPU-1": []}, set()),
        ({"GPU-0": [idle]}, {uid}),  # no reading of the other card
        ({"GPU-0": [], "GPU-1": []}, set()),
    ]
    for each, expected in found:
        cards.cards = each
        cards.check()
        assert cards.watch.working() == expected

    cards.seconds += 3 * use_watch.CHECK_SECONDS
    assert cards.watch.working() == set()
    cards.seconds += 1
    assert cards.watch.working() is None


def test_work_is_not_known_without_processes(cards: Cards) -> None:
    cards.check()
    assert cards.watch.working() == set()
    # What the driver counts by pod is known all the same, but no kernel.
    cards.unreadable, cards.counted = "no such PID namespace", {(POD.uid, "GPU-0"): GIB}
    cards.check()

    assert cards.watch.working() is None


def test_trouble_is_logged_once_and_shown(cards: Cards) -> None:
    rounds = iter(range(3))

    def failing() -> Mapping[str, Sequence[GpuProcess]]:
        cards.watch._wakeup.wake()  # go round at once
        if next(rounds) == 2:
            cards.watch.stop()
        raise RetryableError("NVML: driver not loaded")

    cards.use(21, times=2)
    cards.watch._processes = failing
    with capture_logs() as logs:
        cards.watch.run(lambda _: None, cards.events, cards.changed)

    assert next(rounds, None) is None
    assert [each["event"] for each in logs] == ["use_not_observed"]
    assert cards.watch.current().reason == "NVML: driver not loaded"
    assert cards.watch.working() is None
    assert cards.watch.excess(TWO_CARDS) == ()
