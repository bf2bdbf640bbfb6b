"""Parts that several commands build from the same settings: cards, health, enforcers, limits."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfusion_dra.app.shared import providers
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.setting_sources import flag
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims import lending, verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer, EnforcerSettings
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import State, Verdict
from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Gpu, Isolation
from tensorfusion_dra.core.devices.health import HealthRules
from tensorfusion_dra.core.devices.other_users import KubeletDevices
from tensorfusion_dra.core.devices.xids import XidRules
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.discovery import host, models
from tensorfusion_dra.discovery.host import HostDeviceNodes, HostDriverFiles
from tensorfusion_dra.driver import card_health
from tensorfusion_dra.driver.card_health import CardHealthTracker
from tensorfusion_dra.driver.claim_facts import CardFiles
from tensorfusion_dra.driver.driver_replacement import DriverReplacement
from tensorfusion_dra.driver.providers import ProviderKind
from tensorfusion_dra.driver.status import utc_now
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.enforcers.choice import EnforcerChooser
from tensorfusion_dra.enforcers.guarded import GuardedEnforcer
from tensorfusion_dra.enforcers.mig import Mig
from tensorfusion_dra.kubelet import pod_resources
from tensorfusion_dra.state import claim_files, claim_store, saved_state
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

    Those of other packages are imported when their facts are read, or anything else of them.
    """
    own: dict[str, Enforcer] = {
        name: registered.kind(name).from_settings(_enforcer_settings(settings, name))
        for name in registered.OWN
    }
    others = {
        each.name: GuardedEnforcer(each.name, each.load, _enforcer_settings(settings, each.name))
        for each in providers.registered(settings)
        if each.kind is ProviderKind.ENFORCER and not each.unused
    }
    return own | others | {Mig.name: Mig(partial(cards_read, settings))}


def cards_read(settings: Settings) -> Mapping[str, Gpu]:
    """Return the cards of the node plugin's last saved reading, by UUID; empty if there is none."""
    saved = SavedState(settings.data_folder, saved_state.CARDS).load()
    try:
        boot, now = boot_id(settings), card_health.now()
        known = health.from_json(saved or {}, boot_id=boot, claimed=(), now=now)
    except (InputError, ValueError):
        return {}
    return known.cards


def candidates(
    settings: Settings, every: Mapping[str, Enforcer] | None = None
) -> Mapping[str, Enforcer]:
    """Return the enforcers that the settings name, in their order.

    Args:
        every: The result of enforcers(), so that another package's enforcer has only one thread;
            None calls it.

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


def node_enforcer(
    settings: Settings,
    every: Mapping[str, Enforcer] | None = None,
    *,
    on_change: Callable[[], None] = lambda: None,
) -> EnforcerChooser:
    """Return the chooser of the enforcer of new claims.

    Args:
        every: From enforcers(); None for new ones.
        on_change: Called when what the devices show of the enforcer has changed.

    Raises:
        InputError: See candidates().
    """
    named = candidates(settings, every)
    is_real = not settings.simulated_gpus
    (example,) = enforcer_rules.example(next(iter(named)), Isolation(settings.isolation)).shares
    known = (enforcer.of_record(example) for enforcer in named.values())
    is_limited = any(each is None or each.state is State.NOT_ENFORCED for each in known)
    return EnforcerChooser(
        named,
        is_real=is_real,
        is_auto=is_real and settings.is_choice,
        is_required=settings.require_enforcement,
        is_needed=is_real and settings.isolation != Isolation.SHARED and is_limited,
        wait_seconds=settings.enforcer_wait_seconds,
        on_change=on_change,
        now=utc_now,
    )


def _enforcer_settings(settings: Settings, name: str) -> EnforcerSettings:
    folder = f"{settings.tensor_fusion_root}/{name}"
    return EnforcerSettings(
        folder=folder,
        claims_root=f"{folder}/claims",
        values={flag(item.name): str(getattr(settings, item.name)) for item in fields(settings)},
        is_choice=settings.is_choice
        and name in settings.candidates
        and not settings.simulated_gpus,
    )


def lending_rules(settings: Settings, every: Mapping[str, Enforcer]) -> LendingRules:
    """Return the rules for limits above requests; `every` is from enforcers()."""
    return LendingRules(
        overcommit_limits=settings.overcommit_limits,
        # Overcommitted limits are given at once, so the card would be divided by nobody.
        unasked_percent=100
        if settings.default_compute_limit == "card" and not settings.overcommit_limits
        else 0,
        factor=settings.lending_factor,
        facts={name: enforcer.facts for name, enforcer in every.items()},
    )


def boot_id(settings: Settings) -> str:
    """Return the ID of this boot.

    Raises:
        InputError: It cannot be read.
    """
    return host.boot_id(Path(settings.boot_id_file))


def card_files(settings: Settings) -> CardFiles:
    """Return the finder of device nodes and driver libraries for containers."""
    return CardFiles(
        device_nodes=device_nodes(settings),
        driver_files=HostDriverFiles(
            Path(settings.driver_root),
            root_on_host=_driver_root_on_host(settings),
            cdi_folders=(Path(settings.static_cdi_dir), Path(settings.cdi_dir)),
        ),
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
        FatalError: A newer release has written a record.
    """
    return CardHealthTracker(
        health_rules(settings),
        records=SavedState(settings.data_folder, saved_state.CARDS, durable=True),
        boot_id=boot_id(settings),
        claims=claims,
        saves=saves,
        replacement=replacement,
    )


def allocations(settings: Settings) -> Callable[[], KubeletDevices]:
    """Return a function that asks the kubelet which devices plugins offer and containers hold."""
    return partial(
        pod_resources.devices,
        Path(settings.kubelet_root) / "pod-resources" / "kubelet.sock",
    )


def taint_effect(settings: Settings) -> str:
    """Return the effect of the taint of an unhealthy device; "" for no taint."""
    return "" if settings.health_taint == "none" else settings.health_taint


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(code) for code in text.split(",") if code)


def recorded(settings: Settings) -> Sequence[PreparedClaim]:
    """Return the node's prepared claims, beside a node plugin that may be running.

    Raises:
        RetryableError: The records cannot be read, or one of them is damaged.
        FatalError: A newer release wrote one.
    """
    found = claim_store.read(settings.data_folder)
    for uid, reason in found.damaged.items():
        raise RetryableError(
            f"claim record {settings.data_folder / claim_store.FOLDER / uid}.json: {reason}, "
            "expected a readable one; the node plugin rebuilds it from its claim"
        )
    rules = lending_rules(settings, enforcers(settings))
    return lending.divided(list(found.claims.values()), rules)


def verdicts_now(
    settings: Settings, claims: Sequence[PreparedClaim]
) -> Sequence[Sequence[Verdict]]:
    """Return for each of this node's claims the verdict about each of its shares, as of now."""
    every, now = enforcers(settings), time.time()
    found = []
    for claim in claims:
        try:  # the limits were last set when their document was written
            document = claim_files.limits(Path(settings.tensor_fusion_root)).path(claim.ref.uid)
            is_new = now - document.stat().st_mtime < verdicts.STARTING_SECONDS
        except OSError:
            is_new = False
        found.append(enforcer_rules.judged(claim, every.get(claim.enforcer), claims, is_new=is_new))
    return found
