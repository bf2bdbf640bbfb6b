"""Operations on claims, measured stage by stage and given to observers."""

import itertools
import time
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import (
    EndedOperation,
    OperationKind,
    Result,
    Stage,
)
from tensorfusion_dra.core.errors import ClaimError, FatalError, NoRoomError, RetryableError
from tensorfusion_dra.driver.operations import MAX_KEPT, Operations
from tests.support.prepared_node import GPU_0, Setup, put_claim, share_result
from tests.support.waiting import PATIENCE_SECONDS


class Seen:
    """Observer that keeps the operations, and raises this error after each."""

    def __init__(self, error: Exception | None = None) -> None:
        self.ended: list[EndedOperation] = []
        self._error = error

    def operation_ended(self, operation: EndedOperation) -> None:
        self.ended.append(operation)
        if self._error is not None:
            raise self._error


class FailingClaims:
    """Claims of which none can be read."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        raise self._error


@pytest.fixture
def seen(setup: Setup) -> Seen:
    """The operations of the node, measured by a clock that gains a second with each reading."""
    observer = Seen()
    setup.use(
        operations=Operations(observer.operation_ended, clock=itertools.count(0.0, 1.0).__next__)
    )
    return observer


def put(setup: Setup, name: str = "a") -> ClaimRef:
    return put_claim(setup, name, share_result(tflops="1", vram="1Gi"))


def stages(operation: EndedOperation) -> list[str]:
    return [stage.value for stage in operation.seconds_by_stage]


def test_operations_have_their_stages_in_their_order(setup: Setup, seen: Seen) -> None:
    ref = put(setup)

    setup.prepare(ref)
    setup.prepare(ref)
    setup.unprepare(ref)

    first = ["queue", "read", "lookup", "resolve", "admit", "flush", "write"]
    assert [(each.kind, each.from_record, stages(each)) for each in seen.ended] == [
        (OperationKind.PREPARE, False, first),
        (OperationKind.PREPARE, True, ["queue", "read", "lookup"]),
        (OperationKind.UNPREPARE, False, ["queue", "withdraw", "flush", "write"]),
    ]
    assert {(each.claim, each.result, each.error) for each in seen.ended} == {
        (ref, Result.SUCCESS, "")
    }
    prepared = seen.ended[0]
    assert prepared.seconds_by_stage == {Stage(name): 1.0 for name in first}
    assert prepared.seconds == 7.0


def test_second_claim_of_a_call_waits_for_the_first(setup: Setup, seen: Seen) -> None:
    refs = [put(setup, name) for name in ("a", "b")]

    setup.prepare(*refs)

    first, second = seen.ended
    # One second for each reading of the clock, of which the end of the first operation is one.
    assert first.seconds_by_stage[Stage.QUEUE] == 1.0
    assert second.seconds_by_stage[Stage.QUEUE] == first.seconds + 1.0


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ClaimError("found none"), Result.CLAIM_ERROR),
        (RetryableError("found none"), Result.RETRYABLE),
        (NoRoomError("found none"), Result.NO_ROOM),
        (FatalError("found none"), Result.FATAL),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_failure_has_its_kind_and_stage(
    setup: Setup, seen: Seen, error: Exception, result: Result, number: int
) -> None:
    refs = [put(setup, name) for name in ("a", "b")[:number]]
    preparer = setup.with_claims(FailingClaims(error))

    with capture_logs() as logs:
        try:
            preparer.prepare(refs, deadline=time.monotonic() + PATIENCE_SECONDS)
        except FatalError as raised:
            assert raised is error  # noqa: PT017 - the other errors are not raised

    assert {(each.result, each.error) for each in seen.ended} == {(result, "found none")}
    assert {each.last_stage for each in seen.ended} == {Stage.READ}
    lines = [line for line in logs if line["event"] == "claim_prepare_failed"]
    assert len(lines) == len(seen.ended)
    level = "error" if result is Result.FATAL else "warning"
    found = {(line["log_level"], line["result"], line["stage"], line["error"]) for line in lines}
    assert found == {(level, result.value, "read", "found none")}


def test_defect_is_raised_and_seen(setup: Setup, seen: Seen) -> None:
    preparer = setup.with_claims(FailingClaims(KeyError("metadata")))

    with pytest.raises(KeyError):
        preparer.prepare([put(setup)], deadline=time.monotonic() + PATIENCE_SECONDS)

    (ended,) = seen.ended
    assert (ended.result, ended.error) == (Result.UNEXPECTED, "KeyError('metadata')")


def test_closing_line_is_the_only_one_and_has_stages_and_shares(setup: Setup, seen: Seen) -> None:
    ref = put(setup)

    with capture_logs() as logs:
        setup.prepare(ref)

    (line,) = [line for line in logs if line["log_level"] != "debug"]
    assert line["event"] == "claim_prepared"
    assert (line["pod"], line["pods"], line["from_record"]) == ("default/a", 1, False)
    assert line["shares"] == [{"device": GPU_0, "vram_bytes": 2**30, "sm_percent": 1}]
    assert line["seconds"] == seen.ended[0].seconds
    assert line["stages_ms"] == {
        stage.value: seconds * 1000 for stage, seconds in seen.ended[0].seconds_by_stage.items()
    }


def test_observer_that_raises_costs_nothing_else(setup: Setup) -> None:
    seen = Seen(ZeroDivisionError("a"))
    setup.use(operations=Operations(seen.operation_ended))
    ref = put(setup)

    with capture_logs() as logs:
        setup.prepared(ref)

    assert [each.claim for each in seen.ended] == [ref]
    (line,) = [line for line in logs if line["event"] == "operation_observer_failed"]
    assert line["error"] == "ZeroDivisionError('a')"


def test_newest_operation_is_first_and_the_oldest_are_dropped() -> None:
    operations = Operations()
    refs = [ClaimRef(namespace="n", name=str(number), uid=str(number)) for number in range(65)]

    operations.run_each(OperationKind.PREPARE, refs, lambda _: None)

    found = operations.recent()
    assert len(found) == MAX_KEPT
    assert [each.claim.name for each in (found[0], found[-1])] == ["64", "5"]
