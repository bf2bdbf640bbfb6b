"""The Node object that owns the slices."""

from tensorfusion_dra.cluster.api import Api, metadata, segment
from tensorfusion_dra.core.errors import RetryableError


class Nodes:
    """See ports.Nodes."""

    def __init__(self, api: Api, *, node_name: str) -> None:
        self._api = api
        self._node_name = node_name

    def uid(self) -> str:
        """See ports.Nodes."""
        node = self._api.call("GET", f"/api/v1/nodes/{segment(self._node_name)}")
        uid = metadata(node).get("uid")
        if not uid:
            raise RetryableError(f"node {self._node_name}: found no UID")
        return str(uid)
