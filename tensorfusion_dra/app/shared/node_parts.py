"""Parts that several commands build from the same settings: cards, health, enforcers, limits."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfusion_dra.app.shared import providers
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.setting_sources import flag
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import presence, verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer, EnforcerSettings
from tensorfusion_dra.core.claims.enforcers.kinds import AUTO, KINDS, NoEnforcer
from tensorfusion_dra.core.claims.enforcers.nvidia import Nvidia
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.evidence import NodeEvidencePaths
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.devices.health import HealthRules
from tensorfusion_dra.core.devices.other_users import Allocations
from tensorfusion_dra.core.devices.xids import XidRules
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity
from tensorfusion_dra.discovery import host, models
from tensorfusion_dra.discovery.host import HostDeviceNodes, HostDriverFiles
from tensorfusion_dra.driver.card_health import CardHealthTracker
from tensorfusion_dra.driver.driver_replacement import DriverReplacement
from tensorfusion_dra.driver.enforcement_watch import NodeEnforcer
from tensorfusion_dra.driver.guarded_enforcer import GuardedEnforcer
from tensorfusion_dra.driver.local_cards import NodeFactsReader
from tensorfusion_dra.driver.providers import ProviderKind
from tensorfusion_dra.driver.status import utc_now
from tensorfusion_dra.enforcement.evidence import EvidenceReader
from tensorfusion_dra.kubelet import pod_resources
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState

if TYPE_CHECKING:
    from tensorfusion_dra.discovery.nvml.nvml_discovery import NvmlDiscovery
    from tensorfusion_dra.discovery.simulated.simulated_discovery import SimulatedDiscovery


def follows_gpupool(settings: Settings) -> bool:
    """Return True if the pool's values come from the cluster, not from the settings."""
    return settings.pool_source != "settings"


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
        if each.kind is ProviderKind.ENFORCER and not each.unused
    }
    return {**own, **others}


def candidates(
    settings: Settings, every: Mapping[str, Enforcer] | None = None
) -> Mapping[str, Enforcer]:
    """Return the enforcers that the settings name, in their order.

    Args:
        every: From enforcers(), so that one of another package has one thread; None for new ones.

    Raises:
        InputError: One is another package's and cannot be used, or is disabled.
    """
    every = every or enforcers(settings)
    for name in settings.candidates:
        enforcer = every.get(name)
        if enforcer is None:
            raise InputError(
                f"enforcer: found {name}, which disable-provider turns off or whose name cannot be "
                "used, expected another one"
            )
        if isinstance(enforcer, GuardedEnforcer):
            enforcer.check()
    return {name: every[name] for name in settings.candidates}


def node_enforcer(settings: Settings, every: Mapping[str, Enforcer] | None = None) -> NodeEnforcer:
    """Return what chooses the enforcer of new claims.

    Args:
        every: From enforcers(); None for new ones.

    Raises:
        InputError: See candidates().
    """
    named = candidates(settings, every)
    is_real = not settings.simulated_gpus
    example = example_claim(settings, isolation=Isolation(settings.isolation))
    is_limited = settings.isolation != Isolation.SHARED and (
        settings.enforcer == NoEnforcer.name or presence.needs_enforcer(example)
    )
    return NodeEnforcer(
        EvidenceReader(),
        named,
        {name: _node_paths(settings, each) for name, each in named.items() if is_real},
        is_auto=is_real and settings.enforcer == AUTO,
        is_required=settings.require_enforcement,
        is_needed=is_real and is_limited,
        wait_seconds=settings.enforcer_wait_seconds,
        now=utc_now,
    )


def _enforcer_settings(settings: Settings, name: str) -> EnforcerSettings:
    folder = f"{settings.tensor_fusion_root}/{name}"
    return EnforcerSettings(
        folder=folder,
        claims_root=f"{folder}/claims",
        values={flag(item.name): str(getattr(settings, item.name)) for item in fields(settings)},
    )


def memory_limits_socket(settings: Settings) -> str:
    """Return the socket of the container memory-limits."""
    return Nvidia.from_settings(_enforcer_settings(settings, Nvidia.name)).socket


def node_facts(settings: Settings, every: Mapping[str, Enforcer] | None = None) -> NodeFactsReader:
    """Return the node facts for granting cards to containers, from the settings.

    Args:
        every: From enforcers(); None for new ones.

    Raises:
        InputError: The boot's ID cannot be read.
    """
    every = every or enforcers(settings)
    return NodeFactsReader(
        device_nodes=device_nodes(settings),
        driver_files=HostDriverFiles(
            Path(settings.driver_root),
            root_on_host=_driver_root_on_host(settings),
            cdi_folders=(Path(settings.static_cdi_dir), Path(settings.cdi_dir)),
        ),
        rules=LendingRules(
            overcommit_limits=settings.overcommit_limits,
            enforcers=every,
        ),
        boot_id=host.boot_id(Path(settings.boot_id_file)),
        describes_devices=settings.device_metadata,
        metadata_folder=str(settings.data_folder / names.METADATA_FOLDER),
    )


def device_nodes(settings: Settings) -> HostDeviceNodes:
    """Return the device nodes of the cards, in the folder from the settings."""
    return HostDeviceNodes(
        Path(settings.dev_dir) if settings.dev_dir else None,
        driver_root=Path(settings.driver_root),
        root_on_host=_driver_root_on_host(settings),
    )


@contextmanager
def discovery(
    settings: Settings,
    prepared: Callable[[], Sequence[PreparedClaim]] = tuple,
    check: Callable[[], None] = lambda: None,
) -> "Iterator[NvmlDiscovery | SimulatedDiscovery]":
    """Discover real GPUs, or the simulated ones from the settings.

    Only the chosen one is imported, so that a simulation does not load pynvml.

    Args:
        prepared: Returns the prepared claims, whose shares simulated processes use.
        check: Called before NVML is opened; raises RetryableError if it has to stay closed.

    Raises:
        InputError: The model table or the profile cannot be used.
    """
    table = models.load(Path(settings.gpu_models) if settings.gpu_models else None)
    if settings.simulated_gpus:
        from tensorfusion_dra.discovery.simulated import simulated_discovery  # noqa: PLC0415

        yield simulated_discovery.SimulatedDiscovery(
            settings.simulated_gpus,
            node_name=settings.node_name,
            table=table,
            prepared=prepared,
        )
        return
    from tensorfusion_dra.discovery.nvml.nvml_discovery import NvmlDiscovery  # noqa: PLC0415

    yield NvmlDiscovery(
        table,
        library=Path(settings.nvml_library) if settings.nvml_library else None,
        driver_root=Path(settings.driver_root),
        wait_seconds=settings.nvml_wait_seconds,
        check=check,
    )


def _driver_root_on_host(settings: Settings) -> Path:
    return Path(settings.driver_root_on_host or settings.driver_root)


def health_rules(settings: Settings) -> HealthRules:
    """Return the rules by which the health of this node's cards changes."""
    return HealthRules(
        failed_readings=settings.health_failed_readings,
        good_readings=settings.health_good_readings,
        quiet_seconds=settings.health_quiet_seconds,
        xid_clear_seconds=settings.health_xid_clear_seconds,
        xids=XidRules(
            ignored=_codes(settings.health_ignored_xids),
            critical=_codes(settings.health_critical_xids),
        ),
    )


def follows_driver(settings: Settings) -> bool:
    """Return True if the Node's labels say when the NVIDIA driver is replaced."""
    return settings.release_driver and not settings.simulated_gpus


def health_tracker(
    settings: Settings,
    claims: Callable[[], Sequence[PreparedClaim]],
    *,
    saves: bool = True,
    replacement: DriverReplacement | None = None,
) -> CardHealthTracker:
    """Return a tracker that starts from the health records of earlier processes.

    Args:
        claims: Returns all prepared claims.
        saves: False to read the health records without writing them.
        replacement: Of the NVIDIA driver; None if NVML is read in any case.

    Raises:
        InputError: The boot ID cannot be read.
        FatalError: The ledger is damaged.
    """
    return CardHealthTracker(
        health_rules(settings),
        records=SavedState(settings.data_folder, saved_state.CARDS, durable=True),
        boot_id=host.boot_id(Path(settings.boot_id_file)),
        claims=claims,
        saves=saves,
        replacement=replacement,
    )


def allocations(settings: Settings) -> Callable[[], Allocations]:
    """Return what asks the kubelet what else gives away and holds this node's devices."""
    socket = Path(settings.kubelet_root) / "pod-resources" / "kubelet.sock"
    return partial(pod_resources.allocations, socket)


def taint_effect(settings: Settings) -> str:
    """Return the effect of the taint of an unhealthy device; "" for no taint."""
    return "" if settings.health_taint == "none" else settings.health_taint


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(code) for code in text.split(",") if code)


def _node_paths(settings: Settings, enforcer: Enforcer) -> NodeEvidencePaths:
    """Return where an enforcer leaves evidence of itself for shares in soft isolation."""
    example = replace(example_claim(settings, isolation=Isolation.SOFT), enforcer=enforcer.name)
    paths = presence.evidence_paths(example, enforcer)
    if enforcer.name != TensorFusion.name:
        return NodeEvidencePaths(enforcer=enforcer.name, files=paths.files, socket=paths.socket)
    host = settings.hypervisor_ip
    sockets = settings.bridge_folder or f"{settings.kubelet_root}/device-plugins"
    # A pod in the host's network could answer there while no hypervisor does.
    asks_host = host and not settings.bridge_folder
    return NodeEvidencePaths(
        enforcer=enforcer.name,
        files=paths.files,
        sockets=f"{sockets}/tensor-fusion-index-*.sock",
        http=(host, settings.hypervisor_port) if asks_host else None,
    )


def verdicts_now(
    settings: Settings, claims: Sequence[PreparedClaim]
) -> Sequence[Sequence[Verdict]]:
    """Return for each of this node's claims the verdict about each of its shares, as of now."""
    kinds = enforcers(settings)
    reader = EvidenceReader()
    paths = [presence.evidence_paths(claim, kinds.get(claim.enforcer)) for claim in claims]
    found = []
    for claim, place in zip(claims, paths, strict=True):
        every = zip(claims, paths, strict=True)
        beside = verdicts.beside(claim, place, every)
        evidence = reader.of_claim(place)
        is_new = evidence.read_at - _limits_since(settings, claim) < verdicts.STARTING_SECONDS
        found.append(
            verdicts.of_claim(
                claim,
                evidence,
                is_new=is_new,
                beside=beside,
                judge=verdicts.judge_of(kinds.get(claim.enforcer)),
            )
        )
    return found


def _limits_since(settings: Settings, claim: PreparedClaim) -> float:
    """Return when the claim's limits were last set: the time of its limits document."""
    document = Path(settings.tensor_fusion_root) / "claims" / f"{claim.ref.uid}.json"
    try:
        return document.stat().st_mtime
    except OSError:
        return -math.inf


def example_claim(settings: Settings, *, isolation: Isolation) -> PreparedClaim:
    """Return an example of a prepared claim for a part of a real card."""
    share = PreparedShare(
        request="gpu",
        pool=node(settings).pool,
        device="gpu-0",
        gpu_uuid="GPU-0",
        share_id=None,
        consumed={
            names.CAPACITY_TFLOPS: Quantity.whole(1),
            names.CAPACITY_VRAM: Quantity.of_bytes(GIB),
        },
        exclusive=False,
        admin_access=False,
        device_nodes=("/dev/nvidia0",),
        isolation=isolation,
        qos=Qos(settings.qos),
        toolkit_device=None,
        pci_bus_id="",
        wanted_vram_bytes=GIB,
        limit=Limit(sm_percent=1, vram_bytes=GIB),
    )
    ref = ClaimRef(namespace="default", name="doctor", uid="doctor")
    return PreparedClaim(ref=ref, shares=(share,), enforcer=settings.enforcer)
