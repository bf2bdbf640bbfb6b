"""Watch over the use of the cards: evidence, statuses, and processes without a share."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.use import Container, Process
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.use_watch import CHECK_SECONDS, SHOWN_SECONDS, UseWatch
from tests.support.builders import stored_claims
from tests.support.builders.prepared_claims import POD, limit, prepared_claim, prepared_share
from tests.support.ports import EventsInMemory

ID = "4f" * 32
CLAIM = prepared_claim(prepared_share(0, limit(50, 20)), prepared_share(1, limit(50, 20)))


class Counting(Enforcer):
    """An enforcer that counts what a test sets."""

    def __init__(self, setup: "Setup") -> None:
        self.setup = setup

    def used(self, claim: PreparedClaim) -> Mapping[tuple[str, str], int]:
        return self.setup.counted


class Setup:
    """A watch with a clock that a test moves, over cards whose processes a test sets."""

    def __init__(self, *claims: PreparedClaim) -> None:
        self.seconds = 0.0
        self.cards: Mapping[str, Sequence[Process]] = {"GPU-0": [], "GPU-1": []}
        self.claims = claims
        self.events = EventsInMemory()
        self.reported: list[str] = []
        self.changes = 0
        self.fetched: list[str] = []
        self.late_pods: Sequence[str] = ()
        self.reason: Exception | None = None
        self.unreadable = ""
        self.counted: Mapping[tuple[str, str], int] = {}
        self.watch = UseWatch(
            self,
            lambda: self.claims,
            self,
            {CLAIM.enforcer: Counting(self)},
            clock=lambda: self.seconds,
        )

    def processes(self) -> Mapping[str, Sequence[Process]]:
        if self.unreadable:
            raise RetryableError(self.unreadable)
        return self.cards

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        del wait_seconds
        self.fetched.append(ref.uid)
        if self.reason:
            raise self.reason
        stored = stored_claims.stored_claim(
            ref.name, stored_claims.allocation_result("gpu-0", tflops=None, vram=None), uid=ref.uid
        )
        stored["status"]["reservedFor"] = [
            {"resource": "pods", "name": uid, "uid": uid} for uid in (POD.uid, *self.late_pods)
        ]
        return stored

    def check(self, *, times: int = 1) -> None:
        for _ in range(times):
            self.seconds += CHECK_SECONDS
            self.watch.check(
                lambda claim: self.reported.append(claim.ref.uid), self.events, self.changed
            )

    def changed(self) -> None:
        self.changes += 1

    def use(self, gib: float, *, card: str = "GPU-0", pod: str = POD.uid) -> None:
        of = Container(pod_uid=pod, id=ID) if pod else None
        process = Process(pid=7, vram_bytes=int(gib * GIB), container=of, name="python")
        self.cards = {"GPU-0": [], "GPU-1": [], card: [process]}


@pytest.fixture
def setup() -> Setup:
    return Setup(CLAIM)


def test_share_is_over_its_limit_after_two_readings(setup: Setup) -> None:
    setup.use(21)

    setup.check()
    once = setup.watch.excess(CLAIM), setup.changes
    setup.check()
    twice = setup.watch.excess(CLAIM), setup.changes
    setup.use(19)
    setup.check()

    assert once == (["", ""], 0)
    text = (
        "GPU-0: found 21Gi of memory in use by 1 processes, expected at most 20Gi; nothing keeps "
        "it within its limit"
    )
    assert twice == ([text, ""], 1)
    assert (setup.watch.excess(CLAIM), setup.changes) == (["", ""], 2)


def test_one_reading_between_breaks_the_row(setup: Setup) -> None:
    for gib in (21, 19, 21):
        setup.use(gib)
        setup.check()

    assert setup.watch.excess(CLAIM) == ["", ""]


def test_claim_that_was_never_seen_has_no_excess(setup: Setup) -> None:
    assert setup.watch.excess(CLAIM) == ()


def test_status_gets_a_notable_change_once_a_minute(setup: Setup) -> None:
    readings = round(SHOWN_SECONDS / CHECK_SECONDS)
    setup.use(1)
    setup.check(times=readings)
    first = list(setup.reported)
    setup.use(1.1)
    setup.check(times=3 * readings)
    unnoticed = len(setup.reported)
    for number in range(readings):
        setup.use(2 + number)
        setup.check()

    shown = setup.watch.shown(CLAIM.ref.uid)

    assert first == [CLAIM.ref.uid]
    assert unnoticed == 1
    assert len(setup.reported) == 2
    assert shown[0] is not None
    assert shown[0].vram_bytes == 2 * GIB


def test_unprepared_claim_shows_nothing(setup: Setup) -> None:
    setup.use(1)
    setup.check()
    setup.claims = ()
    setup.check()

    assert setup.watch.shown(CLAIM.ref.uid) == ()


def test_processes_without_a_share_get_one_event_for_each_card(setup: Setup) -> None:
    with capture_logs() as logs:
        setup.use(1, pod="")
        setup.check(times=2)
        setup.use(1)
        setup.check()
        setup.use(2, pod="")
        setup.check()
        setup.use(1, pod="", card="GPU-1")
        setup.check()

    text = "found processes outside of all shares: process 7 python uses 1024 MiB"
    assert setup.events.written == [
        ("ForeignProcesses", f"GPU-0: {text}"),
        ("ForeignProcesses", f"GPU-1: {text}"),
    ]
    assert [each["uuid"] for each in logs if each["event"] == "foreign_processes"] == [
        "GPU-0",
        "GPU-1",
    ]
    assert setup.watch.current().foreign["GPU-1"].processes == 1


def test_event_waits_for_the_api_server(setup: Setup) -> None:
    setup.use(1, pod="")
    setup.events.away = True
    with capture_logs() as logs:
        setup.check()
        setup.events.away = False
        setup.check(times=2)

    assert len(setup.events.written) == 1
    assert len([each for each in logs if each["event"] == "foreign_processes"]) == 1


@pytest.mark.parametrize(
    ("late_pods", "reason", "used_bytes"),
    [
        (["uid-late"], None, 3 * GIB),
        ([], None, 0),
        ([], ClaimError("no such claim"), 0),
    ],
    ids=["a pod that came later", "a pod of somebody else", "a claim that is gone"],
)
def test_claims_are_read_once_for_a_pod_that_no_record_names(
    setup: Setup, late_pods: list[str], reason: Exception | None, used_bytes: int
) -> None:
    setup.late_pods, setup.reason = late_pods, reason
    setup.use(3, pod="uid-late")

    setup.check(times=3)

    current = setup.watch.current()
    used = current.shares[CLAIM.ref.uid][0]
    assert setup.fetched == [CLAIM.ref.uid]
    assert (used.vram_bytes if used else 0) == used_bytes
    assert [*current.foreign] == ([] if used_bytes else ["GPU-0"])


def test_claims_are_read_again_until_the_api_server_answers(setup: Setup) -> None:
    setup.late_pods = ["uid-late"]
    setup.use(3, pod="uid-late")
    setup.reason = RetryableError("no answer")
    setup.check(times=2)
    setup.reason = None
    setup.check(times=2)

    assert len(setup.fetched) == 3
    assert setup.events.written == []
    assert setup.watch.current().foreign == {}


def test_use_that_the_driver_counts_is_known_without_processes(setup: Setup) -> None:
    setup.unreadable = "no such PID namespace"
    setup.counted = {(POD.uid, "GPU-0"): 21 * GIB}

    setup.check(times=2)

    current = setup.watch.current()
    (first, second) = current.shares[CLAIM.ref.uid]
    assert first is not None
    assert (first.vram_bytes, second, current.reason) == (21 * GIB, None, "no such PID namespace")
    assert setup.watch.excess(CLAIM)[0].startswith("GPU-0: found 21Gi of memory in use")


def test_trouble_is_logged_once_and_shown(setup: Setup) -> None:
    rounds = 0

    def failing() -> Mapping[str, Sequence[Process]]:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            setup.watch.stop()
        setup.watch._wakeup.wake()  # go round at once
        raise RetryableError("NVML: driver not loaded")

    setup.use(21)
    setup.check(times=2)
    setup.processes = failing  # type: ignore[method-assign]
    with capture_logs() as logs:
        setup.watch.run(lambda _: None, setup.events, setup.changed)

    assert rounds == 3
    assert [each["event"] for each in logs] == ["use_not_observed"]
    assert setup.watch.current().reason == "NVML: driver not loaded"
    assert setup.watch.excess(CLAIM) == ()
