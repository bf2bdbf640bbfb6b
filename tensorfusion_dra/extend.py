"""Public API for driver developers: additional attributes on every device.

A provider is any callable of the type AttributeProvider. A package that is installed beside this
one names it in the entry point group ``tensorfusion_dra.attributes``:

    [project.entry-points."tensorfusion_dra.attributes"]
    rack = "my_package:rack_attributes"
"""

from collections.abc import Mapping
from typing import Protocol

from tensorfusion_dra.core.devices.device import AttributeValue, Node, Version
from tensorfusion_dra.core.devices.gpu import Gpu, TflopsSource

__all__ = ["AttributeProvider", "AttributeValue", "Gpu", "Node", "TflopsSource", "Version"]


class AttributeProvider(Protocol):
    """Provider of additional attributes for the device of one card."""

    def __call__(self, gpu: Gpu, node: Node, /) -> Mapping[str, AttributeValue]:
        """Return attributes by qualified name, preferably ``<your domain>/<identifier>``.

        Called whenever the node's cards are read. It should be fast, and return the same attributes
        for the same card, because every change is written to the API server. A name that the driver
        itself uses, or a value that the API would refuse, is left out and logged. If it raises an
        exception, only the provider's attributes on this card are missing.
        """
        ...
