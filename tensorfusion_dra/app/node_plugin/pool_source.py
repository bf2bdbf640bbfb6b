"""The cluster's GPUPool as source of the pool's values, if the settings select it."""

from collections.abc import Callable

from tensorfusion_dra.app.node_plugin import node_events
from tensorfusion_dra.app.shared import enforcer_kinds
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.pool_follower import PoolFollower, PoolSource
from tensorfusion_dra.runtime.supervisor import Supervisor


def follows(settings: Settings) -> bool:
    """Return True if the pool's values come from the cluster, not from the settings."""
    return settings.pool_source != "settings"


def follow(
    settings: Settings,
    supervisor: Supervisor,
    *,
    catalog: DeviceCatalog,
    api: Api,
    on_change: Callable[[], None],
) -> PoolFollower:
    """Start the watches, and the follower that updates the node in the catalog; return it."""
    name = settings.node_name

    def wake() -> None:
        follower.wake()

    by_name = settings.gpupool if settings.pool_source == "object" else ""
    pools = watch.gpupools(api, name=by_name, on_change=wake)
    nodes = watch.nodes(api, name=name, on_change=wake)
    follower = PoolFollower(
        PoolSource(pools=pools, nodes=nodes, gpupool=by_name, node_name=name),
        catalog,
        node_events.writer(settings, api),
        on_change=on_change,
        expands_memory=enforcer_kinds.expands_memory(settings.enforcer),
    )
    supervisor.own("gpupool", follower)
    supervisor.own("gpupool-watch", pools)
    supervisor.own("node-watch", nodes)
    return follower
