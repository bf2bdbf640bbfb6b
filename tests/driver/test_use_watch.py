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

CLAIM = prepared_claim(prepared_share(0, limit(50, 20)), prepared_share(1, limit(50, 20)))


class Setup(Enforcer):
    """A watch with a clock that a test moves, over cards and counts that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cards: Mapping[str, Sequence[Process]] = {"GPU-0": [], "GPU-1": []}
        self.claims = [CLAIM]
        self.events = EventsInMemory()
        self.reported: list[str] = []
        self.changes = 0
        self.fetched: list[str] = []
        self.late_pods: Sequence[str] = ()
        self.reason: Exception | None = None  # of the API server
        self.unreadable = ""
        self.counted: Mapping[tuple[str, str], int] = {}
        self.watch = UseWatch(
            self,
            lambda: self.claims,
            self,
            {CLAIM.enforcer: self},
            clock=lambda: self.seconds,
        )

    def used(self, claim: PreparedClaim) -> Mapping[tuple[str, str], int]:
        return self.counted

    def processes(self) -> Mapping[str, Sequence[Process]]:
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
            self.seconds += CHECK_SECONDS
            self.watch.check(
                lambda claim: self.reported.append(claim.ref.uid), self.events, self.changed
            )

    def changed(self) -> None:
        self.changes += 1

    def use(self, gib: float, *, card: str = "GPU-0", pod: str = POD.uid, times: int = 1) -> None:
        """Have one process, of this pod or none, use the memory of a card at the next checks."""
        of = Container(pod_uid=pod, id="4f" * 32) if pod else None
        process = Process(pid=7, vram_bytes=int(gib * GIB), container=of, name="python")
        self.cards = {"GPU-0": [], "GPU-1": [], card: [process]}
        self.check(times=times)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_share_is_over_its_limit_after_two_readings_in_a_row(setup: Setup) -> None:
    assert setup.watch.excess(CLAIM) == ()
    seen = []
    for gib in (21, 19, 21, 21, 19):
        setup.use(gib)
        seen.append((setup.watch.excess(CLAIM), setup.changes))

    text = (
        "GPU-0: found 21Gi of memory in use by 1 processes, expected at most 20Gi; nothing keeps "
        "it within its limit"
    )
    assert seen == [*[(["", ""], 0)] * 3, ([text, ""], 1), (["", ""], 2)]


def test_status_gets_a_notable_change_once_a_minute_until_the_claim_is_unprepared(
    setup: Setup,
) -> None:
    readings = round(SHOWN_SECONDS / CHECK_SECONDS)
    counts = []
    for gib, times in ((1, readings), (1.1, 3 * readings), *((2 + n, 1) for n in range(readings))):
        setup.use(gib, times=times)
        counts.append(len(setup.reported))

    assert counts == [1, 1, *[2] * readings]
    (shown, _) = setup.watch.shown(CLAIM.ref.uid)
    assert shown is not None
    assert shown.vram_bytes == 2 * GIB

    setup.claims.clear()
    setup.check()
    assert setup.watch.shown(CLAIM.ref.uid) == ()


def test_processes_without_a_share_get_one_event_for_each_card(setup: Setup) -> None:
    setup.events.away = True  # it waits for the API server
    with capture_logs() as logs:
        setup.use(1, pod="")
        setup.events.away = False
        setup.use(1, pod="", times=2)
        setup.use(1)
        setup.use(2, pod="")
        setup.use(1, pod="", card="GPU-1")

    text = "found processes outside of all shares: process 7 python uses 1024 MiB"
    assert setup.events.written == [
        ("ForeignProcesses", f"GPU-0: {text}"),
        ("ForeignProcesses", f"GPU-1: {text}"),
    ]
    logged = [each["uuid"] for each in logs if each["event"] == "foreign_processes"]
    assert logged == ["GPU-0", "GPU-1"]
    assert setup.watch.current().foreign["GPU-1"].processes == 1


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
    setup: Setup, late_pods: list[str], reason: Exception | None, used_bytes: int
) -> None:
    setup.reason = RetryableError("no answer")
    setup.use(3, pod="uid-late", times=2)
    assert setup.events.written == []

    setup.late_pods, setup.reason = late_pods, reason
    setup.check(times=3)

    current = setup.watch.current()
    used = current.shares[CLAIM.ref.uid][0]
    assert setup.fetched == [CLAIM.ref.uid] * 3
    assert (used.vram_bytes if used else 0) == used_bytes
    assert [*current.foreign] == ([] if used_bytes else ["GPU-0"])


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
    rounds = iter(range(3))

    def failing() -> Mapping[str, Sequence[Process]]:
        setup.watch._wakeup.wake()  # go round at once
        if next(rounds) == 2:
            setup.watch.stop()
        raise RetryableError("NVML: driver not loaded")

    setup.use(21, times=2)
    setup.processes = failing  # type: ignore[method-assign]
    with capture_logs() as logs:
        setup.watch.run(lambda _: None, setup.events, setup.changed)

    assert next(rounds, None) is None
    assert [each["event"] for each in logs] == ["use_not_observed"]
    assert setup.watch.current().reason == "NVML: driver not loaded"
    assert setup.watch.excess(CLAIM) == ()
