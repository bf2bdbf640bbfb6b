"""Parts of a cluster that decide about one node.

An allocation reads every slice and every claim. For all nodes of a large cluster that takes the
square of its size, so each node gets a cluster with only the slices it can reach and the claims on
their devices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tensorfusion_dra.scheduling.allocation import Cluster
from tensorfusion_dra.scheduling.devices import Slice

_PoolKey = tuple[str, str]


class NodeClusters:
    """The parts of one cluster by node."""

    def __init__(self, whole: Cluster) -> None:
        self.whole: Final = whole
        self._anywhere: Final = [item for item in whole.slices if not item.node_name]
        self._of_node: Final[dict[str, list[Slice]]] = {}
        self._of_pool: Final[dict[_PoolKey, list[Slice]]] = {}
        self._claims: Final[dict[_PoolKey, list[Mapping[str, Any]]]] = {}
        for item in whole.slices:
            self._of_pool.setdefault(_pool(item), []).append(item)
            if item.node_name:
                self._of_node.setdefault(item.node_name, []).append(item)
        for claim in whole.claims:
            for key in _pools(claim):
                self._claims.setdefault(key, []).append(claim)

    def at(self, node_name: str) -> Cluster:
        """Return the cluster with all slices of the node's pools and all claims on them."""
        near = [*self._of_node.get(node_name, ()), *self._anywhere]
        keys = dict.fromkeys(map(_pool, near))
        # A pool can have slices of other nodes: whether it is complete depends on these, too.
        slices = tuple(item for key in keys for item in self._of_pool[key])
        claims = {id(claim): claim for key in keys for claim in self._claims.get(key, ())}
        return replace(self.whole, slices=slices, claims=tuple(claims.values()))


def without(found: Cluster, claims: Iterable[tuple[str, str]]) -> Cluster:
    """Return the cluster without the claims of these namespaces and names."""
    gone = set(claims)
    left = tuple(claim for claim in found.claims if _key(claim) not in gone)
    return replace(found, claims=left)


def _pool(item: Slice) -> _PoolKey:
    return item.driver, item.pool


def _pools(claim: Mapping[str, Any]) -> set[_PoolKey]:
    allocated = (claim.get("status") or {}).get("allocation") or {}
    results = (allocated.get("devices") or {}).get("results") or ()
    return {(result["driver"], result["pool"]) for result in results}


def _key(claim: Mapping[str, Any]) -> tuple[str, str]:
    metadata = claim["metadata"]
    return str(metadata.get("namespace", "")), str(metadata["name"])
