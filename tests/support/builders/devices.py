"""Devices that a node publishes for its cards."""

from typing import Final

from tensorfusion_dra.core.devices.device import Device, Node
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources, Inventory, LeftOut
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.driver.providers.providers import Providers

NODE: Final = Node(name="node-01", gpupool="default", qos="medium")
NO_HOST: Final = HostResources()


def published_devices(
    *gpus: Gpu,
    node: Node = NODE,
    host: HostResources = NO_HOST,
    left_out: tuple[LeftOut, ...] = (),
) -> tuple[Device, ...]:
    """Return the devices of a node with exactly these cards, by the driver's own providers."""
    inventory = Inventory(gpus=gpus, left_out=left_out)
    return Providers().devices(Reading(inventory=inventory, node=node, host=host))
