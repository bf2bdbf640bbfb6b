"""Writes of claim statuses that fail or are forbidden."""

from structlog.testing import capture_logs

from tensorfusion_dra.core.errors import RetryableError
from tests.driver.status_server import (
    ANSWER_SECONDS,
    StatusAtServer,
    missing_right,
    running_reporter,
)
from tests.support.builders.reported_claims import (
    reported_claim,
    reported_limit,
    reported_share,
)
from tests.support.waiting import FOREVER, eventually


def test_lasting_fault_of_one_claim_delays_no_other_and_is_retried_for_ever() -> None:
    server = StatusAtServer()
    server.refused = {"a"}
    with running_reporter(server, retry_seconds=0.001) as reporter:
        reporter.report(reported_claim("a"))
        assert eventually(lambda: server.tries.count("a") > 8)

        reporter.report(reported_claim("b"))
        assert eventually(lambda: server.written == ["b"])
        server.refused = set()

        assert eventually(lambda: server.written == ["b", "a"])


def test_earlier_status_is_written_again_after_a_write_with_unknown_outcome() -> None:
    server = StatusAtServer()
    with running_reporter(server, retry_seconds=FOREVER) as reporter:
        reporter.report(reported_claim("a"))
        assert eventually(lambda: server.written == ["a"])
        server.faults = [RetryableError("the answer was lost")]
        reporter.report(reported_claim("a", reported_share(limit=reported_limit(20))))
        assert eventually(lambda: server.tries == ["a", "a"])

        reporter.report(reported_claim("a"))

        assert eventually(lambda: server.vram_limits() == [24, 24])


def test_missing_right_is_logged_once_and_stops_all_writes() -> None:
    server = StatusAtServer()
    server.lasting = missing_right("a")
    with capture_logs() as lines, running_reporter(server) as reporter:
        for name in "abc":
            reporter.report(reported_claim(name))

        assert eventually(lambda: bool(server.tries))
        assert not eventually(lambda: len(server.tries) > 1, seconds=ANSWER_SECONDS)

    (line,) = lines
    assert (line["event"], line["log_level"]) == ("status_forbidden", "error")
    assert "expected patch on resourceclaims/status" in line["error"]


def test_waiting_statuses_are_written_once_the_right_is_granted() -> None:
    server = StatusAtServer()
    server.lasting = missing_right("a")
    with capture_logs() as lines, running_reporter(server, pause_seconds=0.1) as reporter:
        for name in "abc":
            reporter.report(reported_claim(name))
        assert eventually(lambda: len(server.tries) > 3)

        server.lasting = None

        assert eventually(lambda: sorted(server.written) == ["a", "b", "c"])
    assert [line["event"] for line in lines].count("status_forbidden") == 1


def test_each_missing_right_is_logged() -> None:
    server = StatusAtServer()
    server.faults = [
        missing_right("a"),
        missing_right("a", "associated-node:patch on resourceclaims/driver"),
        missing_right("a"),
    ]
    with capture_logs() as lines, running_reporter(server, pause_seconds=0.01) as reporter:
        reporter.report(reported_claim("a"))

        assert eventually(lambda: server.written == ["a"])
    assert [line["event"] for line in lines].count("status_forbidden") == 2


def test_stop_does_not_wait_for_a_pause_to_end() -> None:
    server = StatusAtServer()
    server.lasting = missing_right("a")
    with running_reporter(server, pause_seconds=FOREVER) as reporter:
        reporter.report(reported_claim("a"))
        assert eventually(lambda: server.tries == ["a"])
