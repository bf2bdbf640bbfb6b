"""The public names for driver developers: attributes of their own on every device.

A provider is any callable of the type AttributeProvider, named in the entry point group
``tensorfusion_dra.attributes`` of a package that is installed beside this one:

    [project.entry-points."tensorfusion_dra.attributes"]
    rack = "my_package:rack_attributes"
"""

from collections.abc import Mapping
from typing import Protocol

from tensorfusion_dra.core.devices.device import AttributeValue, Node, Version
from tensorfusion_dra.core.devices.gpu import Gpu, TflopsSource

__all__ = ["AttributeProvider", "AttributeValue", "Gpu", "Node", "TflopsSource", "Version"]


class AttributeProvider(Protocol):
    """Adds attributes to the device of one card."""

    def __call__(self, gpu: Gpu, node: Node, /) -> Mapping[str, AttributeValue]:
        """Attributes by qualified name, best ``<your domain>/<identifier>``.

        Called whenever the node's cards are read, so it should be quick and always say the same
        of the same card: every change is written to the API server. A name that the driver uses
        itself, or a value that the API would refuse, is left out with a line in the log. An
        exception costs the provider's attributes on this card and nothing else.
        """
        ...
