"""Measurement of operations: what each claim of a call waited for, stage by stage.

An operation is in one stage at any time. The code on its path calls enter() at the beginning of a
stage, which also ends the one before. So the stages have no gaps and their sum is the whole time.
The running operation is a context variable: code that also runs outside of operations, such as a
recovery, may call enter() as well, and nothing happens.

Example: a call brings the claims `a` and `b`. `a` is done after 6 ms. So `b` has 6 ms of `queue`,
and then the stages of its own turn.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Final, TypeVar

import structlog
from structlog.contextvars import bind_contextvars, reset_contextvars

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import EndedOperation, OperationKind, Result, Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.errors import (
    ClaimError,
    DriverError,
    FatalError,
    NoRoomError,
    RetryableError,
)

log = structlog.get_logger()

Ended = TypeVar("Ended")

MAX_KEPT: Final = 60
"""Enough for a burst of pods; an older one is in the log."""

_RESULTS: Final = (
    (NoRoomError, Result.NO_ROOM),  # before RetryableError, which it is too
    (RetryableError, Result.RETRYABLE),
    (ClaimError, Result.CLAIM_ERROR),
    (FatalError, Result.FATAL),
)
_DONE: Final = {
    OperationKind.PREPARE: "claim_prepared",
    OperationKind.UNPREPARE: "claim_unprepared",
}
_FAILED: Final = {
    OperationKind.PREPARE: "claim_prepare_failed",
    OperationKind.UNPREPARE: "claim_unprepare_failed",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why one claim could not be prepared or unprepared; the kubelet shows the text."""

    text: str


@dataclass(slots=True)
class _Running:
    """An operation that has not ended.

    Attributes:
        stage: The stage that it is in, since the time `began`.
        seconds_by_stage: Time in the stages before; one that was entered several times counts once.
    """

    clock: Callable[[], float]
    began: float
    stage: Stage = Stage.QUEUE
    seconds_by_stage: dict[Stage, float] = field(default_factory=dict)


_running: ContextVar[_Running | None] = ContextVar("operation", default=None)


def enter(stage: Stage) -> None:
    """Begin a stage of this context's operation, and end the one before; no-op without one."""
    running = _running.get()
    if running is not None:
        now, seconds = running.clock(), running.seconds_by_stage
        seconds[running.stage] = seconds.get(running.stage, 0.0) + now - running.began
        running.stage, running.began = stage, now


class Operations:
    """Runs the operations of a call, measures them, and closes each with a line in the log."""

    def __init__(
        self,
        on_end: Callable[[EndedOperation], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Args:
        on_end: Called after each operation by the thread of the call, while the kubelet waits
            for the answer. What it raises is logged and changes nothing for the claim.
        clock: In seconds; must not go back.
        """
        self._clock = clock
        self._on_end = on_end
        self._guard = Lock()  # guards _recent
        self._recent: deque[EndedOperation] = deque(maxlen=MAX_KEPT)

    def recent(self) -> Sequence[EndedOperation]:
        """Return the last operations, the newest first."""
        with self._guard:
            return tuple(self._recent)

    def run_each(
        self,
        kind: OperationKind,
        refs: Iterable[ClaimRef],
        step: Callable[[ClaimRef], Ended],
    ) -> dict[str, Ended | Failure]:
        """Run an operation for each claim of a call; return the outcomes by UID.

        Args:
            kind: What the kubelet asked for.
            refs: The claims of the call.
            step: What is done for one of them.

        Raises:
            FatalError: Of a step; the steps of the remaining claims are not taken then.
        """
        began = self._clock()
        outcomes: dict[str, Ended | Failure] = {}
        for ref in refs:
            running = _Running(self._clock, began)
            token = _running.set(running)
            # Less than half of the cost of bound_contextvars(), which copies the context.
            bound = bind_contextvars(claim=str(ref), claim_uid=ref.uid)
            try:
                outcome = outcomes[ref.uid] = step(ref)
            except DriverError as error:
                self._end(kind, ref, running, error=error)
                if isinstance(error, FatalError):
                    raise
                outcomes[ref.uid] = Failure(str(error))
            except Exception as error:
                self._end(kind, ref, running, error=error)
                raise
            else:
                prepared = outcome if isinstance(outcome, PreparedClaim) else None
                self._end(kind, ref, running, prepared=prepared)
            finally:
                _running.reset(token)
                reset_contextvars(**bound)
        return outcomes

    def _end(
        self,
        kind: OperationKind,
        ref: ClaimRef,
        running: _Running,
        *,
        error: Exception | None = None,
        prepared: PreparedClaim | None = None,
    ) -> None:
        """Log an operation, and report it.

        At info if it succeeded, at warning if the kubelet will call again, at error if this process
        ends or has a defect.
        """
        enter(running.stage)  # which ends it
        stages = running.seconds_by_stage
        result = Result.SUCCESS if error is None else Result.UNEXPECTED
        result = next((found for kinds, found in _RESULTS if isinstance(error, kinds)), result)
        ended = EndedOperation(
            kind=kind,
            claim=ref,
            ended_at=datetime.now(UTC),
            seconds=sum(stages.values()),
            seconds_by_stage=stages,
            last_stage=running.stage,
            result=result,
            error=repr(error) if result is Result.UNEXPECTED else str(error or ""),
            # Nothing was resolved for it.
            from_record=bool(prepared and prepared.shares) and Stage.RESOLVE not in stages,
        )
        facts: dict[str, object] = {
            "seconds": round(ended.seconds, 4),
            "stages_ms": {
                str(stage): round(seconds * 1000, 2)
                for stage, seconds in ended.seconds_by_stage.items()
            },
        }
        if prepared is not None:
            shares = [_share(share) for share in prepared.shares]
            facts |= {"shares": shares, "from_record": ended.from_record}
            if prepared.pods:
                # The first one is that in whose name the claim has its folders (ADR 12).
                facts |= {"pod": str(prepared.pods[0]), "pods": len(prepared.pods)}
        if result is Result.SUCCESS:
            log.info(_DONE[kind], **facts)
        else:
            facts |= {"result": result.value, "stage": ended.last_stage.value}
            write = log.error if result in (Result.FATAL, Result.UNEXPECTED) else log.warning
            write(_FAILED[kind], **facts, error=ended.error)
        with self._guard:
            self._recent.appendleft(ended)
        try:
            self._on_end(ended)
        except Exception as failure:  # noqa: BLE001 - whatever it raises, the claim is done
            log.error("operation_observer_failed", error=repr(failure))


def _share(share: PreparedShare) -> dict[str, object]:
    """Return the share's limits, and what it wanted if that is more."""
    facts: dict[str, object] = {"device": share.device}
    if limit := share.limit:
        facts |= {"vram_bytes": limit.vram_bytes, "sm_percent": limit.sm_percent}
        if limit.vram_bytes < share.wanted_vram_bytes:
            facts["wanted_vram_bytes"] = share.wanted_vram_bytes
        if limit.sm_percent < share.wanted_sm_percent:
            facts["wanted_sm_percent"] = share.wanted_sm_percent
    return facts
