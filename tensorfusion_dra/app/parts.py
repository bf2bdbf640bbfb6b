"""Parts that several verbs build from the same settings."""

from contextlib import ExitStack
from pathlib import Path

from tensorfusion_dra.app.settings import Settings
from tensorfusion_dra.core.device import Node
from tensorfusion_dra.discovery import models, simulated
from tensorfusion_dra.discovery.nvml import NvmlDiscovery
from tensorfusion_dra.discovery.simulated import SimulatedDiscovery


def node(settings: Settings) -> Node:
    """The node that the settings name."""
    return Node(name=settings.node_name, gpupool=settings.gpupool, qos=settings.qos)


def discovery(settings: Settings, running: ExitStack) -> NvmlDiscovery | SimulatedDiscovery:
    """Reads real cards, or the simulated ones that the settings ask for.

    Args:
        running: Ends it when it is left.

    Raises:
        InputError: The model table or the profile cannot be used.
    """
    table = models.load(Path(settings.gpu_models) if settings.gpu_models else None)
    if settings.simulated_gpus:
        return simulated.from_text(
            settings.simulated_gpus, node_name=settings.node_name, table=table
        )
    nvml = NvmlDiscovery(
        table,
        library=Path(settings.nvml_library) if settings.nvml_library else None,
        driver_root=Path(settings.driver_root),
    )
    running.callback(nvml.close)
    return nvml
