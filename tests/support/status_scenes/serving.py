"""The status page of a made-up node, served on loopback."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tensorfusion_dra.app.node_plugin import status_page
from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint
from tensorfusion_dra.app.shared.node_settings import LOOPBACK
from tensorfusion_dra.core.observed import NodeView


@dataclass(slots=True)
class ServedNode:
    """A node whose view may be replaced while it is served."""

    view: NodeView
    port: int = 0

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://127.0.0.1:{self.port}/"


@contextmanager
def served(view: NodeView, *, mode: str = LOOPBACK, port: int = 0) -> Iterator[ServedNode]:
    """Serve the page during the block.

    Args:
        view: The node; the yielded object's may be replaced.
        mode: Setting status-page.
        port: 0 for a free one.
    """
    node = ServedNode(view)
    endpoint = HealthEndpoint(
        {"/healthz": lambda: None},
        status_page.pages(mode, lambda: node.view),
        address=f"127.0.0.1:{port}",
    )
    node.port = endpoint.port
    try:
        yield node
    finally:
        endpoint.stop()
