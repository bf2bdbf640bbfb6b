"""Statuses are written behind the driver's back, and never at its cost."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tensorfusion_dra.driver.status import StatusReporter
from tests.support.status_claims import DEVICE, claim, limit, share
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

Entries = list[dict[str, Any]]

ANSWER_SECONDS = 0.3
"""Longer than anything here takes that is to happen."""


class StatusAtServer:
    """Claims' statuses as an API server keeps them, with faults that a test sets.

    Attributes:
        faults: Raised by the next writes, one each; the write is not carried out.
        lasting: Raised by every write.
        refused: Claims of which every write fails.
        open: While it is not set, writes hang.
    """

    def __init__(self) -> None:
        self.writes: list[tuple[str, Entries]] = []
        self.tries: list[str] = []
        self.faults: list[Exception] = []
        self.lasting: Exception | None = None
        self.gone: set[str] = set()
        self.refused: set[str] = set()
        self.open = Event()
        self.open.set()

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        self.tries.append(ref.name)
        assert self.open.wait(PATIENCE_SECONDS)
        if self.faults:
            raise self.faults.pop(0)
        if self.lasting is not None:
            raise self.lasting
        if ref.name in self.refused:
            raise RetryableError("500")
        if ref.name in self.gone:
            return False
        self.writes.append((ref.name, [dict(device) for device in devices]))
        return True

    @property
    def written(self) -> list[str]:
        return [name for name, _ in self.writes]

    def has_writes(self, number: int) -> Callable[[], bool]:
        return lambda: len(self.writes) == number

    def vram_limits(self) -> list[int]:
        return [entries[0]["data"]["limits"]["vramBytes"] // 2**30 for _, entries in self.writes]


@contextmanager
def running(
    server: StatusAtServer,
    *,
    retry_seconds: float = 0.01,
    pause_seconds: float = 600,
    most_waiting: int = 100,
    sick: Callable[[], Mapping[str, Sickness]] = dict,
) -> Iterator[StatusReporter]:
    minutes = itertools.count()
    reporter = StatusReporter(
        server,
        sick=sick,
        now=lambda: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=next(minutes)),
        retry_seconds=retry_seconds,
        pause_seconds=pause_seconds,
        most_waiting=most_waiting,
    )
    thread = Thread(target=reporter.run)
    thread.start()
    try:
        yield reporter
    finally:
        reporter.stop()
        server.open.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def missing(name: str, right: str = "patch on resourceclaims/status") -> MissingRightError:
    return MissingRightError(f"claim default/{name}: PATCH: 403", right)


def test_each_claim_is_written_once_with_its_own_time() -> None:
    server = StatusAtServer()
    with running(server) as reporter:
        reporter.report(claim("a"))
        reporter.report(claim("b"))

        assert eventually(lambda: sorted(server.written) == ["a", "b"])

    times = [entries[0]["conditions"][0]["lastTransitionTime"] for _, entries in server.writes]
    assert times == ["2026-03-01T00:00:00Z", "2026-03-01T00:01:00Z"]


def test_what_did_not_change_is_not_written_again() -> None:
    server = StatusAtServer()
    with running(server) as reporter:
        reporter.report(claim("a"))
        assert eventually(lambda: server.written == ["a"])

        reporter.report(claim("a"))
        reporter.report(claim("b"))

        assert eventually(lambda: server.written == ["a", "b"])


def test_a_changed_limit_is_written_and_the_claim_is_ready_since_the_same_time() -> None:
    server = StatusAtServer()
    with running(server) as reporter:
        reporter.report(claim("a"))
        assert eventually(lambda: server.written == ["a"])

        reporter.report(claim("a", share(limit=limit(20))))

        assert eventually(lambda: server.vram_limits() == [24, 20])
    first, second = (entries[0]["conditions"][0] for _, entries in server.writes)
    assert first["lastTransitionTime"] == second["lastTransitionTime"]
    assert (first["reason"], second["reason"]) == ("Prepared", "MemoryLimitClamped")


def test_a_claim_without_our_devices_is_not_written() -> None:
    server = StatusAtServer()
    with running(server) as reporter:
        empty = claim("a")
        reporter.report(type(empty)(ref=empty.ref, shares=()))
        reporter.report(claim("b"))

        assert eventually(lambda: server.written == ["b"])


def test_report_returns_while_the_api_server_hangs_and_the_newest_record_wins() -> None:
    server = StatusAtServer()
    server.open.clear()
    with running(server) as reporter:
        reporter.report(claim("first"))
        assert eventually(lambda: server.tries == ["first"])

        for vram in (23, 22, 21):
            reporter.report(claim("a", share(limit=limit(vram))))

        assert server.tries == ["first"]  # which still hangs
        server.open.set()
        assert eventually(lambda: server.vram_limits() == [24, 21])


def test_a_fault_is_tried_again_until_it_is_over() -> None:
    server = StatusAtServer()
    server.faults = [RetryableError("no answer")] * 3
    with running(server) as reporter:
        reporter.report(claim("a"))

        assert eventually(lambda: server.written == ["a"])
    assert server.tries == ["a"] * 4


def test_a_lasting_fault_of_one_claim_holds_up_no_other_and_is_never_given_up() -> None:
    server = StatusAtServer()
    server.refused = {"a"}
    with running(server, retry_seconds=0.001) as reporter:
        reporter.report(claim("a"))
        assert eventually(lambda: server.tries.count("a") > 8)

        reporter.report(claim("b"))
        assert eventually(lambda: server.written == ["b"])
        server.refused = set()

        assert eventually(lambda: server.written == ["b", "a"])


def test_a_claim_waits_behind_no_other_ones_back_off() -> None:
    server = StatusAtServer()
    server.faults = [RetryableError("500")]
    with running(server, retry_seconds=FOREVER) as reporter:
        reporter.report(claim("a"))
        assert eventually(lambda: server.tries == ["a"])

        reporter.report(claim("b"))

        assert eventually(lambda: server.written == ["b"])


def test_after_a_write_of_unknown_outcome_the_old_status_is_written_again() -> None:
    server = StatusAtServer()
    with running(server, retry_seconds=FOREVER) as reporter:
        reporter.report(claim("a"))
        assert eventually(lambda: server.written == ["a"])
        server.faults = [RetryableError("the answer was lost")]
        reporter.report(claim("a", share(limit=limit(20))))
        assert eventually(lambda: server.tries == ["a", "a"])

        reporter.report(claim("a"))

        assert eventually(lambda: server.vram_limits() == [24, 24])


def test_a_claim_that_is_gone_is_not_tried_again() -> None:
    server = StatusAtServer()
    server.gone = {"a"}
    with running(server) as reporter:
        reporter.report(claim("a"))
        reporter.report(claim("b"))

        assert eventually(lambda: server.written == ["b"])
    assert server.tries == ["a", "b"]


def test_a_forgotten_claim_is_written_no_more_and_anew_when_it_is_back() -> None:
    server = StatusAtServer()
    server.open.clear()
    with running(server) as reporter:
        reporter.report(claim("first"))
        reporter.report(claim("a"))
        assert eventually(lambda: server.tries == ["first"])
        reporter.forget(claim("a").ref.uid)
        reporter.forget("never-seen")
        server.open.set()
        reporter.report(claim("b"))
        assert eventually(lambda: server.written == ["first", "b"])
        reporter.forget(claim("b").ref.uid)

        reporter.report(claim("b"))

        assert eventually(lambda: server.written == ["first", "b", "b"])


def test_a_claim_forgotten_while_it_is_written_is_not_tried_again() -> None:
    server = StatusAtServer()
    server.faults = [RetryableError("500")]
    server.open.clear()
    with running(server) as reporter:
        reporter.report(claim("a"))
        assert eventually(lambda: server.tries == ["a"])
        reporter.forget(claim("a").ref.uid)
        server.open.set()

        reporter.report(claim("b"))

        assert eventually(lambda: server.written == ["b"])
        assert not eventually(lambda: len(server.tries) > 2, seconds=ANSWER_SECONDS)


def test_a_missing_right_is_told_once_and_nothing_more_is_sent() -> None:
    server = StatusAtServer()
    server.lasting = missing("a")
    with capture_logs() as lines, running(server) as reporter:
        for name in "abc":
            reporter.report(claim(name))

        assert eventually(lambda: bool(server.tries))
        assert not eventually(lambda: len(server.tries) > 1, seconds=ANSWER_SECONDS)

    (line,) = lines
    assert (line["event"], line["log_level"]) == ("status_forbidden", "error")
    assert "expected patch on resourceclaims/status" in line["error"]


def test_once_the_right_is_there_all_that_waited_is_written_without_a_restart() -> None:
    server = StatusAtServer()
    server.lasting = missing("a")
    with capture_logs() as lines, running(server, pause_seconds=0.1) as reporter:
        for name in "abc":
            reporter.report(claim(name))
        assert eventually(lambda: len(server.tries) > 3)

        server.lasting = None

        assert eventually(lambda: sorted(server.written) == ["a", "b", "c"])
    assert [line["event"] for line in lines].count("status_forbidden") == 1


def test_another_missing_right_is_told_as_well() -> None:
    server = StatusAtServer()
    server.faults = [
        missing("a"),
        missing("a", "associated-node:patch on resourceclaims/driver"),
        missing("a"),
    ]
    with capture_logs() as lines, running(server, pause_seconds=0.01) as reporter:
        reporter.report(claim("a"))

        assert eventually(lambda: server.written == ["a"])
    assert [line["event"] for line in lines].count("status_forbidden") == 2


def test_more_claims_than_the_queue_holds_are_left_out_with_a_word() -> None:
    server = StatusAtServer()
    server.open.clear()
    with capture_logs() as lines, running(server, most_waiting=2) as reporter:
        reporter.report(claim("first"))
        assert eventually(lambda: server.tries == ["first"])
        for name in "abc":
            reporter.report(claim(name))
        reporter.report(claim("a", share(limit=limit(20))))

        server.open.set()

        assert eventually(lambda: sorted(server.written) == ["a", "b", "first"])
    assert [line["claim"] for line in lines if line["event"] == "status_dropped"] == ["default/c"]


def test_stopping_does_not_wait_for_a_pause_to_end() -> None:
    server = StatusAtServer()
    server.lasting = missing("a")
    with running(server, pause_seconds=FOREVER) as reporter:
        reporter.report(claim("a"))
        assert eventually(lambda: server.tries == ["a"])


def test_a_claim_on_a_sick_card_is_not_ready_since_then_and_ready_again_later() -> None:
    server, sick = StatusAtServer(), dict[str, Sickness]()
    lost = Trouble(kind=Kind.LOST, reason="lost", text="the GPU is lost")
    with running(server, sick=lambda: sick) as reporter:
        for number, state in enumerate([None, lost, None], start=1):
            sick.clear()
            if state is not None:
                since = datetime(2026, 3, 1, 12, tzinfo=UTC)
                sick[DEVICE] = Sickness(worst=state, since=since)
            reporter.report(claim("a"))
            assert eventually(server.has_writes(number))

    conditions = [entries[0]["conditions"][0] for _, entries in server.writes]
    assert [each["status"] for each in conditions] == ["True", "False", "True"]
    assert [each["reason"] for each in conditions] == ["Prepared", "GPUUnhealthy", "Prepared"]
    assert conditions[1]["message"].startswith("the GPU is lost; ")
    first, second, third = (each["lastTransitionTime"] for each in conditions)
    assert (first, second) == ("2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z")
    assert third > first
