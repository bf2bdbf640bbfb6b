"""Durations of prepares and unprepares, as a whole by result and in parts by stage."""

from typing import Final

from tensorfusion_dra.core.claims.operation import STAGES, EndedOperation, OperationKind, Result
from tensorfusion_dra.metrics.counts import CALL_SECONDS, STAGE_SECONDS, Histogram


class OperationDurations:
    """Observer of the operations on claims; implements ports.operations.OperationObserver.

    Attributes:
        totals: By kind; the label is the result.
        stages: By kind; the label is the stage.
    """

    def __init__(self) -> None:
        results = [(result.value,) for result in Result]
        self.totals: Final = {
            kind: Histogram(results, bounds=CALL_SECONDS) for kind in OperationKind
        }
        self.stages: Final = {
            kind: Histogram([(stage.value,) for stage in STAGES[kind]], bounds=STAGE_SECONDS)
            for kind in OperationKind
        }

    def operation_ended(self, operation: EndedOperation) -> None:
        self.totals[operation.kind].add((operation.result.value,), operation.seconds)
        self.stages[operation.kind].add_each(
            ((stage.value,), seconds) for stage, seconds in operation.seconds_by_stage.items()
        )
