"""Statuses of claims, written by a thread that never delays the driver."""

from datetime import UTC, datetime

from tensorfusion_dra.core.devices.health import Kind, Sickness, Trouble
from tests.driver.status_server import StatusAtServer, running_reporter
from tests.support.builders.reported_claims import (
    DEVICE,
    reported_claim,
    reported_limit,
    reported_share,
)
from tests.support.waiting import eventually


def test_each_claim_is_written_once_with_its_own_time() -> None:
    server = StatusAtServer()
    with running_reporter(server) as reporter:
        reporter.report(reported_claim("a"))
        reporter.report(reported_claim("b"))

        assert eventually(lambda: sorted(server.written) == ["a", "b"])

    times = [entries[0]["conditions"][0]["lastTransitionTime"] for _, entries in server.writes]
    assert times == ["2026-03-01T00:00:00Z", "2026-03-01T00:01:00Z"]


def test_unchanged_status_is_not_written_again() -> None:
    server = StatusAtServer()
    with running_reporter(server) as reporter:
        reporter.report(reported_claim("a"))
        assert eventually(lambda: server.written == ["a"])

        reporter.report(reported_claim("a"))
        reporter.report(reported_claim("b"))

        assert eventually(lambda: server.written == ["a", "b"])


def test_changed_limit_is_written_with_the_earlier_transition_time() -> None:
    server = StatusAtServer()
    with running_reporter(server) as reporter:
        reporter.report(reported_claim("a"))
        assert eventually(lambda: server.written == ["a"])

        reporter.report(reported_claim("a", reported_share(limit=reported_limit(20))))

        assert eventually(lambda: server.vram_limits() == [24, 20])
    first, second = (entries[0]["conditions"][0] for _, entries in server.writes)
    assert first["lastTransitionTime"] == second["lastTransitionTime"]
    assert (first["reason"], second["reason"]) == ("Prepared", "MemoryLimitClamped")


def test_report_does_not_block_on_a_hanging_server_and_the_newest_record_is_written() -> None:
    server = StatusAtServer()
    server.open.clear()
    with running_reporter(server) as reporter:
        reporter.report(reported_claim("first"))
        assert eventually(lambda: server.tries == ["first"])

        for vram in (23, 22, 21):
            reporter.report(reported_claim("a", reported_share(limit=reported_limit(vram))))

        assert server.tries == ["first"]  # its write still hangs
        server.open.set()
        assert eventually(lambda: server.vram_limits() == [24, 21])


def test_write_to_a_deleted_claim_is_not_retried() -> None:
    server = StatusAtServer()
    server.gone = {"a"}
    with running_reporter(server) as reporter:
        reporter.report(reported_claim("a"))
        reporter.report(reported_claim("b"))

        assert eventually(lambda: server.written == ["b"])
    assert server.tries == ["a", "b"]


def test_forgotten_claim_is_written_again_only_after_a_new_report() -> None:
    server = StatusAtServer()
    server.open.clear()
    with running_reporter(server) as reporter:
        reporter.report(reported_claim("first"))
        reporter.report(reported_claim("a"))
        assert eventually(lambda: server.tries == ["first"])
        reporter.forget(reported_claim("a").ref.uid)
        reporter.forget("never-seen")
        server.open.set()
        reporter.report(reported_claim("b"))
        assert eventually(lambda: server.written == ["first", "b"])
        reporter.forget(reported_claim("b").ref.uid)

        reporter.report(reported_claim("b"))

        assert eventually(lambda: server.written == ["first", "b", "b"])


def test_claim_is_not_ready_while_its_card_is_sick() -> None:
    server, sick = StatusAtServer(), dict[str, Sickness]()
    lost = Trouble(kind=Kind.LOST, reason="lost", text="the GPU is lost")
    with running_reporter(server, sick=lambda: sick) as reporter:
        for number, state in enumerate([None, lost, None], start=1):
            sick.clear()
            if state is not None:
                since = datetime(2026, 3, 1, 12, tzinfo=UTC)
                sick[DEVICE] = Sickness(worst=state, since=since)
            reporter.report_changed(reported_claim("a"))
            assert eventually(server.has_writes(number))

    conditions = [entries[0]["conditions"][0] for _, entries in server.writes]
    assert [each["status"] for each in conditions] == ["True", "False", "True"]
    assert [each["reason"] for each in conditions] == ["Prepared", "GPUUnhealthy", "Prepared"]
    assert conditions[1]["message"].startswith("the GPU is lost; ")
    first, second, third = (each["lastTransitionTime"] for each in conditions)
    assert (first, second) == ("2026-03-01T00:00:00Z", "2026-03-01T12:00:00Z")
    assert third > first
