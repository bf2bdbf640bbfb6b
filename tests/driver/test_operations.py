"""Operations on claims, measured stage by stage and given to observers."""

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import (
    EndedOperation,
    OperationKind,
    Result,
    Stage,
)
from tensorfusion_dra.core.errors import ClaimError, FatalError, NoRoomError, RetryableError
from tensorfusion_dra.driver.operations import MAX_KEPT, Operations
from tests.support.builders.claims import claim_ref
from tests.support.logs import capture_logs
from tests.support.ports import ClaimsInMemory
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


@pytest.fixture
def seen(setup: Setup) -> Seen:
    """The operations of the node, measured by a clock that gains a second with each reading."""
    observer, clock = Seen(), itertools.count(0.0, 1.0)
    setup.use(operations=Operations(observer.operation_ended, clock=clock.__next__))
    return observer


def put(setup: Setup, name: str = "a") -> ClaimRef:
    return put_claim(setup, name, share_result(tflops="1", vram="1Gi"))


def test_operations_have_their_stages_in_their_order(setup: Setup, seen: Seen) -> None:
    ref = put(setup)

    setup.prepare(ref)
    setup.prepare(ref)
    setup.unprepare(ref)

    first = dict.fromkeys(["queue", "read", "lookup", "resolve", "admit", "flush", "write"], 1.0)
    assert [(each.kind, each.from_record, [*each.seconds_by_stage]) for each in seen.ended] == [
        (OperationKind.PREPARE, False, [*first]),
        (OperationKind.PREPARE, True, ["queue", "read", "lookup"]),
        (OperationKind.UNPREPARE, False, ["queue", "withdraw", "flush", "write"]),
    ]
    outcomes = {(each.claim, each.result, each.error) for each in seen.ended}
    assert outcomes == {(ref, Result.SUCCESS, "")}
    assert (seen.ended[0].seconds_by_stage, seen.ended[0].seconds) == (first, 7.0)


def test_second_claim_of_a_call_waits_for_the_first(setup: Setup, seen: Seen) -> None:

    setup.prepare(*[put(setup, name) for name in ("a", "b")])

    first, second = seen.ended
    # One second for each reading of the clock, of which the end of the first operation is one.
    assert first.seconds_by_stage[Stage.QUEUE] == 1.0
    assert second.seconds_by_stage[Stage.QUEUE] == first.seconds + 1.0


def prepare_unread(setup: Setup, refs: Sequence[ClaimRef], error: Exception) -> None:
    """Prepare claims of which none can be read."""

    def fetch(*_: object, **__: object) -> Mapping[str, Any]:
        raise error

    claims = ClaimsInMemory()
    claims.fetch = fetch  # type: ignore[method-assign]
    setup.with_claims(claims).prepare(refs, deadline=time.monotonic() + PATIENCE_SECONDS)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ClaimError("found none"), Result.CLAIM_ERROR),
        (RetryableError("found none"), Result.RETRYABLE),
        (NoRoomError("found none"), Result.NO_ROOM),
        (FatalError("found none"), Result.FATAL),
    ],
)
def test_failure_has_its_kind_and_stage(
    setup: Setup, seen: Seen, error: Exception, result: Result, number: int
) -> None:
    is_raised = result is Result.FATAL
    refs = [put(setup, name) for name in ("a", "b")[:number]]

    with capture_logs() as logs, pytest.raises(FatalError) if is_raised else nullcontext():
        prepare_unread(setup, refs, error)

    found = [(each.result, each.last_stage, each.error) for each in seen.ended]
    assert found == [(result, Stage.READ, "found none")] * (1 if is_raised else number)
    lines = [line for line in logs if line["event"] == "claim_prepare_failed"]
    level = "error" if is_raised else "warning"
    texts = [(line["log_level"], line["result"], line["stage"], line["error"]) for line in lines]
    assert texts == [(level, result.value, "read", "found none")] * len(found)


def test_defect_is_raised_and_seen(setup: Setup, seen: Seen) -> None:
    with pytest.raises(KeyError):
        prepare_unread(setup, [put(setup)], KeyError("metadata"))

    (ended,) = seen.ended
    assert (ended.result, ended.error) == (Result.UNEXPECTED, "KeyError('metadata')")


def test_closing_line_is_the_only_one_and_has_stages_and_shares(setup: Setup, seen: Seen) -> None:
    with capture_logs() as logs:
        setup.prepare(put(setup))

    (line,) = [line for line in logs if line["log_level"] != "debug"]
    (ended,) = seen.ended
    expected = {
        "event": "claim_prepared",
        "pod": "default/a",
        "pods": 1,
        "from_record": False,
        "shares": [{"device": GPU_0, "vram_bytes": 2**30, "sm_percent": 1}],
        "seconds": ended.seconds,
        "stages_ms": {stage: seconds * 1000 for stage, seconds in ended.seconds_by_stage.items()},
    }
    assert {key: line[key] for key in expected} == expected


def test_observer_that_raises_costs_nothing_else(setup: Setup) -> None:
    seen = Seen(ZeroDivisionError("a"))
    setup.use(operations=Operations(seen.operation_ended))

    with capture_logs() as logs:
        record = setup.prepared(put(setup))

    assert [each.claim for each in seen.ended] == [record.ref]
    failed = [line["error"] for line in logs if line["event"] == "operation_observer_failed"]
    assert failed == ["ZeroDivisionError('a')"]


def test_newest_operation_is_first_and_the_oldest_are_dropped() -> None:
    operations = Operations()
    refs = [claim_ref(f"{number}") for number in range(MAX_KEPT + 5)]

    operations.run_each(OperationKind.PREPARE, refs, lambda _: None)

    assert [each.claim for each in operations.recent()] == refs[:4:-1]
