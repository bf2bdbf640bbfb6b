"""Attributes of a card that the driver does not know."""

from collections.abc import Mapping

from tensorfusion_dra.extend import AttributeValue, Gpu, Node


def attributes(gpu: Gpu, node: Node) -> Mapping[str, AttributeValue]:
    """Return the attributes of one card; called whenever the node's cards are read."""
    return {"example.com/example_provider": f"{node.name}-{gpu.index}"}
