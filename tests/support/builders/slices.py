"""ResourceSlices of the node node-01: as it wants them, and as the API server stores them."""

import copy
from typing import Any, Final

from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.slices import Slice
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpus
from tests.support.slice_store import applied

NAME: Final = "tensor-fusion-resource-slice-node-01"
"""Name of the first slice."""
MANY: Final = published_devices(*gpus(129))
"""Enough devices for three slices."""


def wanted_slices(
    count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid"
) -> tuple[Slice, ...]:
    """Return the desired slices of a node with this number of devices."""
    return slices.wanted(MANY[:count], node, node_uid=node_uid)


def stored_slices(
    count: int = 2, *, node: Node = NODE, node_uid: str = "node-uid"
) -> list[dict[str, Any]]:
    """Return the slices of this number of devices as the API server stores them."""
    items = applied(slices.plan(wanted_slices(count, node=node, node_uid=node_uid), []), [])
    return [copy.deepcopy(dict(item)) for item in items]


def new_slice(*, generation: int = 1) -> Slice:
    """Return a slice of the node with one device, as it is sent to the API server."""
    (created,) = slices.plan(wanted_slices(1), []).create
    pool = {**created["spec"]["pool"], "generation": generation}
    return {**created, "spec": {**created["spec"], "pool": pool}}


def slice_of_models(
    *devices: tuple[str, ...],
    pool: str = "default",
    node: str = "node-01",
    virtual: bool = False,
) -> dict[str, Any]:
    """Return a slice of a GPUPool with devices, each given by model, TFLOPS and perhaps memory.

    Args:
        virtual: True for a node that oversubscribes: three times the memory.
    """
    more = {"virtual_tflops": {"value": "1k"}, "virtual_vram": {"value": "240Gi"}}
    return {
        "metadata": {"name": f"{pool}-{node}"},
        "spec": {
            "driver": "tensor-fusion.ai.dra-driver",
            "nodeName": node,
            "pool": {"name": f"{pool}/{node}", "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{index}",
                    "attributes": {
                        "model": {"string": model},
                        "product_name": {"string": f"NVIDIA {model}"},
                        "pool_name": {"string": pool},
                    },
                    "capacity": {
                        "tflops": {"value": tflops},
                        "vram": {"value": vram[0] if vram else "80Gi"},
                        **(more if virtual else {}),
                    },
                }
                for index, (model, tflops, *vram) in enumerate(devices)
            ],
        },
    }
