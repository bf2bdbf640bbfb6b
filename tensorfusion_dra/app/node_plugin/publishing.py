"""Construction of the parts that publish the node's cards: loop, watch of the slices, pool."""

from dataclasses import dataclass

from tensorfusion_dra.app.node_plugin import node_events, pool_source
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import ResourceApi
from tensorfusion_dra.cluster.nodes import Nodes
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.pool_follower import PoolFollower
from tensorfusion_dra.driver.publish import Publisher
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state.publishing_right import PublishingRight


@dataclass(frozen=True, slots=True)
class Publishing:
    """The publisher, and the node's slices at the API server."""

    publisher: Publisher
    slices: Slices

    def start(
        self,
        settings: Settings,
        supervisor: Supervisor,
        catalog: DeviceCatalog,
        resource_api: ResourceApi,
    ) -> PoolFollower | None:
        """Start each part in its thread; the supervisor stops them. Slices are not deleted.

        Returns:
            The follower of the node's GPUPool; None if its values come from the settings.
        """
        # Before the publisher starts, so that it waits for the watch's list and sends none of its
        # own.
        watch = self.slices.watch(
            on_change=self.publisher.slices_changed, on_return=self.publisher.server_returned
        )
        supervisor.own("publish", self.publisher)
        supervisor.own("slice-watch", watch)
        if not pool_source.follows(settings):
            return None
        return pool_source.follow(
            settings,
            supervisor,
            catalog=catalog,
            api=resource_api.api,
            on_change=self.publisher.wake,
        )


def constructed(
    settings: Settings, catalog: DeviceCatalog, resource_api: ResourceApi
) -> Publishing:
    """Return the parts; nothing is started, and no request is sent."""
    slices = Slices(resource_api, node_name=settings.node_name)
    nodes = Nodes(resource_api.api, node_name=settings.node_name)
    publisher = Publisher(
        catalog,
        slices,
        nodes,
        node_events.writer(settings, resource_api.api),
        right=PublishingRight(settings.data_folder),
    )
    return Publishing(publisher, slices)
