"""The parts by which this node is observed, for its status page and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorfusion_dra.app.node_plugin import status_page
from tensorfusion_dra.app.node_plugin.node_base import NodeBase
from tensorfusion_dra.app.shared import health_endpoint, version
from tensorfusion_dra.app.shared.health_endpoint import Page
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.driver.enforcement_watch import EnforcementWatch
from tensorfusion_dra.driver.node_observer import (
    ApiServerState,
    NodeObserver,
    RecentOperations,
    Sources,
)
from tensorfusion_dra.driver.publish import Publisher
from tensorfusion_dra.kubelet.plugin_servers import Registration
from tensorfusion_dra.metrics.node_metrics import NodeMetrics
from tensorfusion_dra.runtime.supervisor import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Observing:
    """What follows the node plugin from its start.

    Attributes:
        api_server: Told of each request to the API server.
        operations: Told of each prepare and unprepare.
        metrics: Told of both.
    """

    api_server: ApiServerState = field(default_factory=ApiServerState)
    operations: RecentOperations = field(default_factory=RecentOperations)
    metrics: NodeMetrics = field(default_factory=NodeMetrics)

    def observer(
        self,
        settings: Settings,
        base: NodeBase,
        *,
        enforcement: EnforcementWatch,
        publisher: Publisher,
        registration: Registration,
    ) -> NodeObserver:
        """Return the observer of this node; nothing is read yet."""
        return NodeObserver(
            Sources(
                catalog=base.catalog,
                claims=base.ledger.claims,
                standings=enforcement.standings,
                enforcer=enforcement.node,
                registration=registration.view,
                api_server=self.api_server.view,
                publishing=publisher.state.view,
                ledger=base.reconciler.ledger,
                operations=self.operations.views,
            ),
            node=settings.node_name,
            version=version.current(),
        )

    def pages(
        self, settings: Settings, supervisor: Supervisor, observer: NodeObserver
    ) -> Mapping[str, Page]:
        """Return the pages for the health port: metrics and status page, unless they are off.

        Raises:
            FatalError: The metrics' own port cannot be bound.
        """
        return {
            **self._metrics_page(settings, supervisor, observer),
            **status_page.pages(settings.status_page_mode, observer.view),
        }

    def _metrics_page(
        self, settings: Settings, supervisor: Supervisor, observer: NodeObserver
    ) -> Mapping[str, Page]:
        if settings.metrics != "true":
            return {}

        def written(accept: str) -> tuple[str, bytes]:
            most = settings.shown_shares
            return self.metrics.written(observer.view, accept=accept, most_shares=most)

        return health_endpoint.metrics_page(
            written, supervisor, host=settings.metrics_host, port=settings.metrics_port
        )
