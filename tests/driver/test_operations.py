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
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError, FatalError, NoRoomError, RetryableError
from tensorfusion_dra.driver.operations import Operations
from tests.support.prepared_node import GPU_0, Setup, put_claim, share_result
from tests.support.waiting import PATIENCE_SECONDS


class Seen:
    """Observer that keeps the operations."""

    def __init__(self) -> None:
        self.ended: list[EndedOperation] = []

    def operation_ended(self, operation: EndedOperation) -> None:
        self.ended.append(operation)


class Raising:
    def operation_ended(self, operation: EndedOperation) -> None:
        raise ZeroDivisionError(operation.claim.name)


class Ticks:
    """Clock that gains a second with each reading."""

    def __init__(self) -> None:
        self._next = itertools.count(0.0, 1.0)

    def __call__(self) -> float:
        return next(self._next)


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
    setup.operations = Operations([observer], clock=Ticks())
    setup.preparer = setup.with_claims(setup.claims)
    return observer


def put(setup: Setup, name: str = "a") -> ClaimRef:
    return put_claim(setup, name, share_result(tflops="1", vram="1Gi"))


def stages(operation: EndedOperation) -> list[str]:
    return [stage.value for stage, _ in operation.entered]


def test_prepare_has_its_stages_in_their_order(setup: Setup, seen: Seen) -> None:
    ref = put(setup)

    setup.prepare(ref)

    (prepared,) = seen.ended
    assert (prepared.kind, prepared.claim) == (OperationKind.PREPARE, ref)
    assert (prepared.result, prepared.error) == (Result.SUCCESS, "")
    assert not prepared.from_record
    assert isinstance(prepared.prepared, PreparedClaim)
    expected = ["queue", "read", "lookup", "resolve", "admit", "flush", "write"]
    assert stages(prepared) == expected
    assert prepared.seconds_by_stage == {Stage(name): 1.0 for name in expected}
    assert prepared.seconds == 7.0


def test_repeated_prepare_is_answered_from_the_record(setup: Setup, seen: Seen) -> None:
    ref = put(setup)
    setup.prepare(ref)

    setup.prepare(ref)

    repeated = seen.ended[1]
    assert repeated.from_record
    assert repeated.prepared == seen.ended[0].prepared
    assert stages(repeated) == ["queue", "read", "lookup"]


def test_unprepare_has_its_stages_in_their_order(setup: Setup, seen: Seen) -> None:
    ref = put(setup)
    setup.prepare(ref)

    setup.unprepare(ref)

    ended = seen.ended[1]
    assert (ended.kind, ended.claim) == (OperationKind.UNPREPARE, ref)
    assert (ended.result, ended.prepared) == (Result.SUCCESS, None)
    assert stages(ended) == ["queue", "withdraw", "flush", "write"]


def test_second_claim_of_a_call_waits_for_the_first(setup: Setup, seen: Seen) -> None:
    refs = [put(setup, name) for name in ("a", "b")]

    setup.prepare(*refs)

    first, second = seen.ended
    # One second for each reading of the clock until its end, and none lies outside a stage.
    assert first.entered[0] == second.entered[0] == (Stage.QUEUE, 0.0)
    assert second.seconds == second.ended == sum(second.seconds_by_stage.values())
    assert second.entered[1][1] > first.ended


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
    seen = Seen()
    setup.operations = Operations([Raising(), seen])
    ref = put(setup)

    with capture_logs() as logs:
        outcomes = setup.with_claims(setup.claims).prepare(
            [ref], deadline=time.monotonic() + PATIENCE_SECONDS
        )

    assert isinstance(outcomes[ref.uid], PreparedClaim)
    assert [each.claim for each in seen.ended] == [ref]
    (line,) = [line for line in logs if line["event"] == "operation_observer_failed"]
    assert (line["observer"], line["error"]) == ("Raising", "ZeroDivisionError('a')")
