"""Construction of the observer of this node, for its status page and metrics."""

from tensorfusion_dra.app.node_plugin.node_base import NodeBase
from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.driver.api_server_state import ApiServerState
from tensorfusion_dra.driver.enforcement_watch import EnforcementWatch
from tensorfusion_dra.driver.node_observer import NodeObserver, Sources
from tensorfusion_dra.driver.publish import Publisher
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.state.record_reader import RecordReader


def observer(
    settings: Settings,
    base: NodeBase,
    *,
    enforcement: EnforcementWatch,
    publisher: Publisher,
    registration: Registration,
    api_server: ApiServerState,
) -> NodeObserver:
    """Return the observer; nothing is read yet."""
    return NodeObserver(
        Sources(
            catalog=base.catalog,
            records=RecordReader(settings.data_folder),
            standings=enforcement.standings,
            registration=registration.view,
            api_server=api_server.view,
            publishing=publisher.state.view,
            ledger=base.reconciler.ledger,
        ),
        node=settings.node_name,
        version=version.current(),
    )
