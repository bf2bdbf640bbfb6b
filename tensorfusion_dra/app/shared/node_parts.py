"""Parts that several commands build from the same settings."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfusion_dra.app.shared import providers
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.setting_sources import flag
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer, EnforcerSettings
from tensorfusion_dra.core.claims.enforcers.kinds import KINDS
from tensorfusion_dra.core.claims.tenancy import LendingRules
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.host.device_nodes import HostDeviceNodes
from tensorfusion_dra.discovery.host.driver_files import HostDriverFiles
from tensorfusion_dra.driver.node_offers import NodeOffers
from tensorfusion_dra.driver.providers.guarded_enforcer import GuardedEnforcer
from tensorfusion_dra.driver.providers.registered import Kind
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
    """Return every enforcer by name; a claim keeps the enforcer it was prepared with.

    Those of other packages are imported when a claim or the settings name them.
    """
    own = {
        name: kind.from_settings(_enforcer_settings(settings, name)) for name, kind in KINDS.items()
    }
    others = {
        each.name: GuardedEnforcer(each, _enforcer_settings(settings, each.name))
        for each in providers.registered(settings)
        if each.kind is Kind.ENFORCER and not each.unused
    }
    return {**own, **others}


def chosen_enforcer(settings: Settings, every: Mapping[str, Enforcer] | None = None) -> Enforcer:
    """Return the enforcer that the settings name.

    Args:
        every: From enforcers(), so that one of another package has one thread; None for new ones.

    Raises:
        InputError: It is another package's and cannot be used, or is disabled.
    """
    enforcer = (every or enforcers(settings)).get(settings.enforcer)
    if enforcer is None:
        raise InputError(
            f"enforcer: found {settings.enforcer}, which disable-provider turns off or whose name "
            "cannot be used, expected another one"
        )
    if isinstance(enforcer, GuardedEnforcer):
        enforcer.check()
    return enforcer


def _enforcer_settings(settings: Settings, name: str) -> EnforcerSettings:
    folder = f"{settings.tensor_fusion_root}/{name}"
    return EnforcerSettings(
        folder=folder,
        claims_root=f"{folder}/claims",
        values={flag(item.name): str(getattr(settings, item.name)) for item in fields(settings)},
    )


def node_offers(settings: Settings, every: Mapping[str, Enforcer] | None = None) -> NodeOffers:
    """Return the node facts for granting cards to containers, from the settings.

    Args:
        every: From enforcers(); None for new ones.

    Raises:
        InputError: The boot's ID cannot be read, or the enforcer cannot be used.
    """
    every = every or enforcers(settings)
    enforcer = chosen_enforcer(settings, every)
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
            enforcers=every,
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
