"""This node's Node object, which owns the slices."""

from collections.abc import Mapping
from typing import Any

from tensorfusion_dra.cluster.api import Api, metadata, segment
from tensorfusion_dra.core.errors import RetryableError


class Nodes:
    """Reader of one Node; implements ports.Nodes and ports.NodeReadiness."""

    def __init__(self, api: Api, *, node_name: str) -> None:
        self._api = api
        self._node_name = node_name

    def uid(self) -> str:
        # From the API server's memory, without asking etcd. An outdated UID does no lasting harm:
        # Kubernetes' garbage collector removes what an earlier Node of this name owns.
        uid = metadata(self._fetch({"resourceVersion": "0"})).get("uid")
        if not uid:
            raise RetryableError(f"node {self._node_name}: found no UID")
        return str(uid)

    def is_ready(self) -> bool:
        conditions = (self._fetch({}).get("status") or {}).get("conditions") or []
        return any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in conditions
        )

    def _fetch(self, query: Mapping[str, str]) -> dict[str, Any]:
        return self._api.call("GET", f"/api/v1/nodes/{segment(self._node_name)}", query=query)
