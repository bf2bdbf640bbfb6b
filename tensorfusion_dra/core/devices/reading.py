"""One reading of the node, which providers of attributes, capacities and health answer."""

from dataclasses import dataclass, field

from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources, Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The cards of the node at one moment, all of them together.

    Attributes:
        inventory: The cards, what is left out, and what the NVIDIA driver requests for them.
        node: None for health sources, which are also called before the node's pool is known.
        host: Sizes of the host by which the pool extends the cards' memory.
    """

    inventory: Inventory
    node: Node | None = None
    host: HostResources = field(default_factory=HostResources)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the cards, in NVML's order."""
        return self.inventory.gpus
