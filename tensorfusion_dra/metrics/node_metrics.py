"""The metrics of a node plugin: what it counts from its start, and its page."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tensorfusion_dra.core.observed.node_view import NodeView
from tensorfusion_dra.metrics.api_requests import NODE_PLUGIN, ApiRequests
from tensorfusion_dra.metrics.operations import OperationDurations

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


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
        # At the first scrape: a node that nobody scrapes does without prometheus_client.
        from tensorfusion_dra.metrics import exposition  # noqa: PLC0415

        return exposition.written(self._collected(view(), most_shares), accept=accept)

    def _collected(self, view: NodeView, most_shares: int) -> "Iterator[Metric]":
        from tensorfusion_dra.metrics import exposition, families, node_families  # noqa: PLC0415

        yield from node_families.of_operations(self.operations)
        yield from node_families.of_view(view, most_shares=most_shares)
        yield families.api_requests(self.api_requests.counter)
        yield from exposition.of_process(view.version)
