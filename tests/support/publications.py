"""What the node node-01 publishes, and what of it is written."""

import copy
from collections.abc import Sequence
from typing import Any, Final

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.slices import Slice, SlicePlan
from tests.support.gpus import NODE, cards, published
from tests.support.slice_store import applied

NAME: Final = "tensor-fusion-resource-slice-node-01"
"""Of the first slice."""
MANY: Final = published(*cards(129))
"""As many devices as need three slices."""


def wanted(count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid") -> tuple[Slice, ...]:
    """The slices of so many devices as the node wants them."""
    return slices.wanted(MANY[:count], node, node_uid=node_uid)


def publication(
    count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid"
) -> list[dict[str, Any]]:
    """The slices of so many devices as the API server holds them."""
    items = applied(slices.plan(wanted(count, node=node, node_uid=node_uid), []), [])
    return [copy.deepcopy(dict(item)) for item in items]


def written(plan: SlicePlan) -> dict[str, list[str]]:
    """The names of what is deleted, updated and created."""
    return {
        verb: [item["metadata"]["name"] for item in getattr(plan, verb)]
        for verb in ("delete", "update", "create")
        if getattr(plan, verb)
    }


def generations(items: Sequence[Slice]) -> list[int]:
    """The pool's generation that each slice says."""
    return [item["spec"]["pool"]["generation"] for item in items]
