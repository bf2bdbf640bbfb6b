"""Simulated cards as a node reads them."""

from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.discovery.simulated import simulated_discovery


def gpus(text: str, node_name: str = "node-1") -> tuple[Gpu, ...]:
    return simulated_discovery.from_text(text, node_name=node_name).read().gpus
