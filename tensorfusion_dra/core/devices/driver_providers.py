"""The driver's own providers: they are called like those of other packages, before them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices.capacity import Capacity
from tensorfusion_dra.core.devices.device import AttributeValue, Node
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.devices.reading import Reading

if TYPE_CHECKING:
    from tensorfusion_dra.core.devices.oversubscription import Virtual


class DriverAttributes:
    """Provider of the attributes of the user guide, section 5.2, and of the card's own."""

    def __init__(self) -> None:
        self._on_every_device: Mapping[str, AttributeValue] = {}

    def begin(self, reading: Reading, /) -> None:
        """Compute the node's totals, which all its cards have."""
        if reading.node is not None:
            totals = devices.virtual_totals(reading.inventory, reading.node, reading.host)
            self._on_every_device = devices.node_attributes(reading.inventory, reading.node, totals)

    def __call__(self, gpu: Gpu, node: Node, /) -> Mapping[str, AttributeValue]:
        """Return the attributes of a card."""
        return {**self._on_every_device, **devices.gpu_attributes(gpu)}


class DriverCapacities:
    """Provider of compute and memory, and of what a pool that oversubscribes makes of them."""

    def __init__(self) -> None:
        self._totals: Mapping[str, Virtual] = {}

    def begin(self, reading: Reading, /) -> None:
        """Compute the cards' virtual totals."""
        if reading.node is not None:
            self._totals = devices.virtual_totals(reading.inventory, reading.node, reading.host)

    def __call__(self, gpu: Gpu, node: Node, /) -> Mapping[str, Capacity]:
        """Return the capacities of a card."""
        return capacity.of_card(gpu, self._totals.get(gpu.uuid))
