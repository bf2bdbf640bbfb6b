"""The page /metrics: on the health port, or on a port of its own."""

from collections.abc import Callable, Mapping
from typing import Final

from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint
from tensorfusion_dra.app.shared.pages import Page, PageAnswer, PageRequest
from tensorfusion_dra.runtime.supervisor import Supervisor

PATH: Final = "/metrics"

Written = Callable[[str], tuple[str, bytes]]
"""Returns content type and text of all metrics for an Accept header."""


def beside_probes(
    written: Written, supervisor: Supervisor, *, host: str, port: int
) -> Mapping[str, Page]:
    """Return the page for the health port; none if it gets a port of its own, which is served.

    Args:
        written: Writes the metrics.
        supervisor: Stops the page's own port.
        host: The address of that; all addresses if empty.
        port: 0 for the health port.

    Raises:
        FatalError: The address cannot be bound.
    """
    pages = {PATH: _page(written)}
    if not port:
        return pages
    endpoint = HealthEndpoint({}, pages, host=host, port=port, setting="metrics-port")
    supervisor.on_stop(endpoint.stop)
    endpoint.start()
    return {}


def _page(written: Written) -> Page:
    def answer(request: PageRequest) -> PageAnswer:
        content_type, body = written(request.accept)
        return PageAnswer(body=body, content_type=content_type)

    return answer
