"""Measurement of operations: what each claim of a call waited for, stage by stage.

An operation is in one stage at any time. The code on its path calls enter() at the beginning of a
stage, which also ends the one before. So the stages have no gaps and their sum is the whole time.
The running operation is a context variable: code that also runs outside of operations, such as a
recovery, may call enter() as well, and nothing happens.

Example: a call brings the claims `a` and `b`. `a` is done after 6 ms. So `b` has 6 ms of `queue`,
and then the stages of its own turn.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TypeVar

import structlog
from structlog.contextvars import bind_contextvars, reset_contextvars

from tensorfusion_dra.core.claims import operation as operation_rules
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.operation import EndedOperation, OperationKind, Stage
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import DriverError, FatalError
from tensorfusion_dra.driver import operation_log
from tensorfusion_dra.driver.outcomes import Failure
from tensorfusion_dra.driver.ports.operations import OperationObserver

log = structlog.get_logger()

Outcome = TypeVar("Outcome")


class _Running:
    """An operation that has not ended.

    Attributes:
        entered: The stages, with the time at which it entered each.
        from_record: True if its claim is answered from its record.
    """

    __slots__ = ("clock", "entered", "from_record")

    def __init__(self, clock: Callable[[], float], began: float) -> None:
        self.clock = clock
        self.entered = [(Stage.QUEUE, began)]
        self.from_record = False


_running: ContextVar[_Running | None] = ContextVar("operation", default=None)


def enter(stage: Stage) -> None:
    """Begin a stage of this context's operation, and end the one before; no-op without one."""
    running = _running.get()
    if running is not None:
        running.entered.append((stage, running.clock()))


def note_from_record() -> None:
    """Note that the claim is answered from its record."""
    running = _running.get()
    if running is not None:
        running.from_record = True


class Operations:
    """Runs the operations of a call, measures them, and closes each with a line in the log."""

    def __init__(
        self,
        observers: Sequence[OperationObserver] = (),
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Run nothing yet.

        Args:
            observers: Called after each operation, in this order.
            clock: In seconds; must not go back.
        """
        self._clock = clock
        self._observers = tuple(observers)

    def run_each(
        self,
        kind: OperationKind,
        refs: Iterable[ClaimRef],
        step: Callable[[ClaimRef], Outcome],
    ) -> dict[str, Outcome | Failure]:
        """Run an operation for each claim of a call; return the outcomes by UID.

        Args:
            kind: What the kubelet asked for.
            refs: The claims of the call.
            step: What is done for one of them.

        Raises:
            FatalError: Of a step; the steps of the remaining claims are not taken then.
        """
        began = self._clock()
        return {ref.uid: self._run(kind, ref, step, began) for ref in refs}

    def _run(
        self, kind: OperationKind, ref: ClaimRef, step: Callable[[ClaimRef], Outcome], began: float
    ) -> Outcome | Failure:
        running = _Running(self._clock, began)
        token = _running.set(running)
        # Less than half of the cost of bound_contextvars(), which copies the context.
        bound = bind_contextvars(claim=str(ref), claim_uid=ref.uid)
        try:
            outcome = step(ref)
        except DriverError as error:
            self._end(kind, ref, running, error=error)
            if isinstance(error, FatalError):
                raise
            return Failure(str(error))
        except Exception as error:
            self._end(kind, ref, running, error=error)
            raise
        else:
            prepared = outcome if isinstance(outcome, PreparedClaim) else None
            self._end(kind, ref, running, prepared=prepared)
            return outcome
        finally:
            _running.reset(token)
            reset_contextvars(**bound)

    def _end(
        self,
        kind: OperationKind,
        ref: ClaimRef,
        running: _Running,
        *,
        error: Exception | None = None,
        prepared: PreparedClaim | None = None,
    ) -> None:
        at = self._clock()
        ended = EndedOperation(
            kind=kind,
            claim=ref,
            result=operation_rules.result(error),
            error=_text(error),
            entered=running.entered,
            ended=at,
            seconds_by_stage=operation_rules.seconds_by_stage(running.entered, at),
            prepared=prepared,
            from_record=running.from_record,
        )
        operation_log.close(ended)
        for observer in self._observers:
            try:
                observer.operation_ended(ended)
            except Exception as failure:  # noqa: BLE001 - whatever it raises, the claim is done
                log.error(
                    "operation_observer_failed",
                    observer=type(observer).__name__,
                    error=repr(failure),
                )


def _text(error: Exception | None) -> str:
    if error is None:
        return ""
    return str(error) if isinstance(error, DriverError) else repr(error)
