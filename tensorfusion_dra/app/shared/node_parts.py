"""Parts that several commands build from the same settings."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.enforcers.preload import Way
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.tenancy import LendingRules
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.host.device_nodes import HostDeviceNodes
from tensorfusion_dra.discovery.host.driver_files import HostDriverFiles
from tensorfusion_dra.driver.node_offers import NodeOffers
from tensorfusion_dra.state import boot

if TYPE_CHECKING:
    from tensorfusion_dra.discovery.nvml.nvml_discovery import NvmlDiscovery
    from tensorfusion_dra.discovery.simulated.simulated_discovery import SimulatedDiscovery


def node(settings: Settings) -> Node:
    """Return the node that the settings describe."""
    return Node(
        name=settings.node_name,
        gpupool=settings.gpupool,
        qos=settings.qos,
        oversubscription=settings.oversubscription,
    )


def enforcers(settings: Settings) -> Mapping[str, Enforcer]:
    """Return every enforcer by name; a claim keeps the enforcer it was prepared with."""
    every: tuple[Enforcer, ...] = (
        TensorFusion(
            root=settings.tensor_fusion_root,
            hypervisor_ip=settings.hypervisor_ip,
            hypervisor_port=settings.hypervisor_port,
            preload=Way(settings.preload),
        ),
        HamiCore(
            library=settings.hami_core_library,
            preload=Way(settings.preload),
            root=f"{settings.tensor_fusion_root}/hami-core",
        ),
        Mps(pipes=settings.mps_pipes, shm=settings.mps_shm),
    )
    return {enforcer.name: enforcer for enforcer in every}


def node_offers(settings: Settings) -> NodeOffers:
    """Return the node facts for granting cards to containers, from the settings.

    Raises:
        InputError: The boot's ID cannot be read.
    """
    enforcer = enforcers(settings)[settings.enforcer]
    return NodeOffers(
        device_nodes=device_nodes(settings),
        driver_files=HostDriverFiles(
            Path(settings.driver_root),
            root_on_host=_driver_root_on_host(settings),
            cdi_folders=(Path(settings.static_cdi_dir), Path(settings.cdi_dir)),
        ),
        enforcer=enforcer.name,
        enforces_hard=enforcer.enforces_hard,
        rules=LendingRules(
            overcommit_limits=settings.overcommit_limits == "true",
            enforcers=enforcers(settings),
        ),
        boot_id=boot.boot_id(Path(settings.boot_id_file)),
        describes_devices=settings.device_metadata == "true",
    )


def device_nodes(settings: Settings) -> HostDeviceNodes:
    """Return the device nodes of the cards, in the folder from the settings."""
    return HostDeviceNodes(
        Path(settings.dev_dir) if settings.dev_dir else None,
        driver_root=Path(settings.driver_root),
        root_on_host=_driver_root_on_host(settings),
    )


@contextmanager
def discovery(settings: Settings) -> "Iterator[NvmlDiscovery | SimulatedDiscovery]":
    """Discover real GPUs, or the simulated ones from the settings.

    Only the chosen one is imported, so that a simulation does not load pynvml.

    Raises:
        InputError: The model table or the profile cannot be used.
    """
    table = models.load(Path(settings.gpu_models) if settings.gpu_models else None)
    if settings.simulated_gpus:
        from tensorfusion_dra.discovery.simulated import simulated_discovery  # noqa: PLC0415

        yield simulated_discovery.from_text(
            settings.simulated_gpus, node_name=settings.node_name, table=table
        )
        return
    from tensorfusion_dra.discovery.nvml.nvml_discovery import NvmlDiscovery  # noqa: PLC0415

    nvml = NvmlDiscovery(
        table,
        library=Path(settings.nvml_library) if settings.nvml_library else None,
        driver_root=Path(settings.driver_root),
        wait_seconds=settings.nvml_wait_seconds,
    )
    with closing(nvml):
        yield nvml


def _driver_root_on_host(settings: Settings) -> Path:
    return Path(settings.driver_root_on_host or settings.driver_root)
