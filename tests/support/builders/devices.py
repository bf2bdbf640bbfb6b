"""Devices that a node publishes for its cards."""

from typing import Any, Final

from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices.device import Device, Enforcement, Node, Reading
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources, Inventory, LeftOut

NODE: Final = Node(name="node-01", gpupool="default", qos="medium")
NO_HOST: Final = HostResources()
NO_ENFORCER: Final = Enforcement()


def published_devices(
    *gpus: Gpu,
    node: Node = NODE,
    host: HostResources = NO_HOST,
    left_out: tuple[LeftOut, ...] = (),
    enforcement: Enforcement = NO_ENFORCER,
    **states: Any,
) -> tuple[Device, ...]:
    """Return the driver's own devices of a node with exactly these cards.

    Args:
        states: Arguments of build_devices(): users, unhealthy, unhealthy_effect.
    """
    inventory = Inventory(gpus=gpus, left_out=left_out)
    reading = Reading(inventory=inventory, node=node, host=host)
    return device_facts.build_devices(reading, enforcement, **states)
