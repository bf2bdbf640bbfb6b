"""Construction of the writers of Events, one for each thread that writes some."""

from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.events import Events
from tensorfusion_dra.cluster.nodes import Nodes


def writer(settings: Settings, api: Api) -> Events:
    """Return a writer of Events on this node's Node and its pods, for use in one thread."""
    name = settings.node_name
    return Events(api, Nodes(api, node_name=name), node_name=name)
