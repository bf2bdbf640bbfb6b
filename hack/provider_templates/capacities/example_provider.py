"""A capacity of a card that claims consume parts of."""

from collections.abc import Mapping

from tensorfusion_dra.extend import Capacity, Gpu, Node, consumable


def capacities(gpu: Gpu, node: Node) -> Mapping[str, Capacity]:
    """Return the capacities of one card; called whenever the node's cards are read."""
    return {"example.com/example_provider": consumable(16, step=1)}
