"""The metrics of a node plugin: what it counts from its start, and its page."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from tensorfusion_dra.core.claims.operation import STAGES, EndedOperation, OperationKind, Result
from tensorfusion_dra.core.observed.node_view import NodeView
from tensorfusion_dra.metrics import node_families, prometheus
from tensorfusion_dra.metrics.api_requests import NODE_PLUGIN, ApiRequests


class OperationDurations:
    """Durations of prepares and unprepares, as a whole by result and in parts by stage.

    Implements driver.operations.OperationObserver.
    """

    def __init__(self) -> None:
        self._totals: Final = {
            kind: prometheus.new_histogram(
                f"{kind.value}_duration_seconds",
                f"Time to {kind.value} one claim, from the arrival of the kubelet's call.",
                ("result",),
                [(result.value,) for result in Result],
                bounds=prometheus.CALL_SECONDS,
            )
            for kind in OperationKind
        }
        self._stages: Final = {
            kind: prometheus.new_histogram(
                f"{kind.value}_stage_duration_seconds",
                f"Time that one {kind.value} spent in one stage.",
                ("stage",),
                [(stage.value,) for stage in STAGES[kind]],
                bounds=prometheus.STAGE_SECONDS,
            )
            for kind in OperationKind
        }

    def operation_ended(self, operation: EndedOperation) -> None:
        self._totals[operation.kind].labels(operation.result.value).observe(operation.seconds)
        for stage, seconds in operation.seconds_by_stage.items():
            self._stages[operation.kind].labels(stage.value).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yield the families of both."""
        for kind in OperationKind:
            yield from self._totals[kind].collect()
            yield from self._stages[kind].collect()


class NodeMetrics:
    """Counts of a node plugin, and their exposition; safe for all threads.

    Attributes:
        operations: Told of each prepare and unprepare.
        api_requests: Told of each request to the API server.
    """

    def __init__(self) -> None:
        self.operations: Final = OperationDurations()
        self.api_requests: Final = ApiRequests(NODE_PLUGIN)

    def written(
        self, view: Callable[[], NodeView], *, accept: str, most_shares: int
    ) -> tuple[str, bytes]:
        """Return all metrics as text, with its content type.

        Args:
            view: Returns the node at the moment.
            accept: The Accept header of the request.
            most_shares: Number of shares that get series of their own.
        """
        return prometheus.written(self._collected(view(), most_shares), accept=accept)

    def _collected(self, view: NodeView, most_shares: int) -> Iterator[Metric]:
        yield from self.operations.collect()
        yield from node_families.of_view(view, most_shares=most_shares)
        yield from self.api_requests.counter.collect()
        yield from prometheus.of_process(view.version)
