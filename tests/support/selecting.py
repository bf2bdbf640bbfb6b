"""Published devices as CEL selectors see them."""

from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.scheduling import devices

A: Final = f'device.attributes["{names.DRIVER}"]'
"""The driver's attributes in a selector that Kubernetes accepts."""
C: Final = f'device.capacity["{names.DRIVER}"]'
"""The driver's capacities in such a selector."""


def as_scheduled(published: Device) -> devices.PublishedDevice:
    """Return the device as the scheduler reads it from its slice."""
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
