"""Published devices as selectors see them."""

from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.simulator.allocator import devices

A: Final = f'device.attributes["{names.DRIVER}"]'
"""The driver's attributes, as Kubernetes takes them."""
C: Final = f'device.capacity["{names.DRIVER}"]'
"""The driver's capacities."""


def as_scheduled(published: Device) -> devices.Device:
    """The device as the scheduler reads it out of the slice that lists it."""
    document = {
        "metadata": {"name": "slice"},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": "node-01",
            "pool": {"name": "default/node-01", "generation": 1, "resourceSliceCount": 1},
            "devices": [published.as_api()],
        },
    }
    return devices.slice_of(document).devices[0]
