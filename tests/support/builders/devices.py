"""Devices that a node publishes for its cards."""

from typing import Final

from tensorfusion_dra.core.devices import device
from tensorfusion_dra.core.devices.device import Device, Node
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources, Inventory

NODE: Final = Node(name="node-01", gpupool="default", qos="medium")
NO_HOST: Final = HostResources()


def published_devices(
    *gpus: Gpu, node: Node = NODE, host: HostResources = NO_HOST
) -> tuple[Device, ...]:
    """Return the devices of a node with exactly these cards."""
    return device.devices(Inventory(gpus=gpus), node, host)
