"""Slices that the node node-01 publishes, and the writes of a plan."""

import copy
from collections.abc import Sequence
from typing import Any, Final

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.slices import Slice, SlicePlan
from tests.support.gpus import NODE, cards, published
from tests.support.slice_store import applied

NAME: Final = "tensor-fusion-resource-slice-node-01"
"""Name of the first slice."""
MANY: Final = published(*cards(129))
"""Enough devices for three slices."""


def wanted(count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid") -> tuple[Slice, ...]:
    """Return the desired slices of a node with this number of devices."""
    return slices.wanted(MANY[:count], node, node_uid=node_uid)


def publication(
    count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid"
) -> list[dict[str, Any]]:
    """Return the slices of this number of devices as the API server stores them."""
    items = applied(slices.plan(wanted(count, node=node, node_uid=node_uid), []), [])
    return [copy.deepcopy(dict(item)) for item in items]


def written(plan: SlicePlan) -> dict[str, list[str]]:
    """Return the names of the slices that a plan deletes, updates and creates."""
    return {
        verb: [item["metadata"]["name"] for item in getattr(plan, verb)]
        for verb in ("delete", "update", "create")
        if getattr(plan, verb)
    }


def generations(items: Sequence[Slice]) -> list[int]:
    """Return the pool generation of each slice."""
    return [item["spec"]["pool"]["generation"] for item in items]
