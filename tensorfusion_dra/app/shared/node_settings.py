"""The settings of the node plugin: default < file < environment < flag, checked once."""

import argparse
import socket
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.setting_sources import LOG_FORMATS, LOG_LEVELS
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.share_policy import OF_CARDS
from tensorfusion_dra.core.devices.capacity import NO_MORE, Oversubscription
from tensorfusion_dra.core.devices.gpupool import DEFAULT_QOS, QOS_LEVELS
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.settings import LISTENING, setting
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.enforcers.preload import PreloadMethod

TAINTS: Final = ("NoSchedule", "NoExecute", "none")
OFF: Final = "off"
LOOPBACK: Final = "loopback"
ON: Final = "on"
STATUS_PAGES: Final = (OFF, LOOPBACK, ON)
STATUS_PAGES_IN_YAML: Final = {"false": OFF, "true": ON}
"""YAML reads the bare words off and on as booleans."""

_SUBDOMAIN: Final = (
    rf"(?=.{{1,{name_rules.SUBDOMAIN_BYTES}}}$){name_rules.SUBDOMAIN.pattern}",
    "a DNS subdomain in lower case",
)
_XIDS: Final = (r"([0-9]{1,9}(,[0-9]{1,9})*)?", "numbers with commas, as 13,31")
_NAMES: Final = r"[a-z0-9-]{1,63}(,[a-z0-9-]{1,63})*"


_OfEnforcers: Final[Any] = make_dataclass(
    "_OfEnforcers",
    [
        (name, type(item.default), item)
        for each in registered.DECLARED.values()
        for name, item in each.settings.items()
    ],
    frozen=True,
    kw_only=True,
)
"""The settings that enforcers declare."""


# The order is that of --help and of docs/settings.md.
@dataclass(frozen=True, kw_only=True)
class Settings(_OfEnforcers):  # type: ignore[misc]  # made at runtime, so the class is no type
    """All settings of the node plugin; those that enforcers declare come last.

    A setting's flag is its name with dashes. Its environment variable is in docs/settings.md.
    """

    # The node: its name, its pool, the folders of kubelet, runtime and NVIDIA driver.
    node_name: str = setting(
        "",
        "Name of this node's Node object; the host name if empty.",
        env="NODE_NAME",
        form=_SUBDOMAIN,
    )
    pod_uid: str = setting(
        "",
        "UID of this pod, which keeps two instances apart.",
        env="POD_UID",
        form=(r"[A-Za-z0-9-]{0,63}", "letters, digits, dashes"),
    )
    kubeconfig: str = setting(
        "", "File with access to the API server; the service account if empty."
    )
    pool_source: str = setting(
        "settings",
        "Source of the pool: settings, object (gpupool names it), node-labels (it selects this "
        "node).",
        choices=("settings", "object", "node-labels"),
    )
    gpupool: str = setting("default", "GPUPool of this node.", form=_SUBDOMAIN)
    qos: str = setting(
        DEFAULT_QOS,
        f"Level of service that pods select: {', '.join(QOS_LEVELS)}.",
        choices=QOS_LEVELS,
    )
    tflops_oversell_ratio: int = setting(
        100,
        "Compute to hand out, in percent of the GPUs'.",
        span=(100, 100_000),
    )
    vram_expand_to_host_mem: int = setting(
        0,
        "Percent of the host's memory that expands the GPUs' memory.",
        span=(0, 100),
    )
    vram_expand_to_host_disk: int = setting(
        0, "Percent of the data disk that expands the GPUs' memory.", span=(0, 100)
    )
    data_dir: str = setting(
        "",
        "Folder on the data disk; the kubelet's root if empty.",
        is_path=True,
    )
    kubelet_root: str = setting(
        "/var/lib/kubelet",
        "The kubelet's root folder.",
        is_path=True,
    )
    cdi_dir: str = setting(
        "/var/run/cdi", "Folder in which the runtime looks for CDI specs.", is_path=True
    )
    static_cdi_dir: str = setting(
        "/etc/cdi",
        "Folder of the host's own CDI specs.",
        is_path=True,
    )
    device_metadata: bool = setting(
        False,
        "Give containers files with their devices' attributes (docs/advanced.md).",
    )
    dev_dir: str = setting(
        "",
        "Folder of device nodes; /dev or the driver root's if empty.",
        is_path=True,
    )
    driver_root: str = setting("/", "Root folder of the NVIDIA driver's files.", is_path=True)
    driver_root_on_host: str = setting(
        "", "Path of driver-root on the host; the same if empty.", is_path=True
    )
    boot_id_file: str = setting("/proc/sys/kernel/random/boot_id", "File with the host's boot ID.")

    # The cards: how they are read, and what makes one unhealthy.
    nvml_library: str = setting(
        "",
        "Path of libnvidia-ml.so.1; searched if empty.",
        is_path=True,
    )
    gpu_models: str = setting("", "File with TFLOPS by model, which overrides the built-in table.")
    simulated_gpus: str = setting(
        "",
        "GPUs to simulate, such as 8xA100-SXM4-80GB, or a file (docs/extend.md).",
    )
    poll_seconds: float = setting(
        30.0,
        "Time between readings of the GPUs.",
        span=(0.1, 86_400),
    )
    nvml_wait_seconds: float = setting(
        30.0,
        "Time after which a reading of the GPUs counts as hung.",
        span=(0.1, 600),
    )
    health_events: bool = setting(
        True,
        "Wait for XIDs, which keeps the GPUs open.",
    )
    release_driver: bool = setting(
        True,
        "Evict pods and close NVML for a new NVIDIA driver (docs/troubleshoot.md).",
    )
    health_quiet_seconds: float = setting(
        120.0, "Time without trouble before a GPU is healthy again.", span=(0, 86_400)
    )
    health_xid_clear_seconds: float = setting(
        0.0,
        "Time after which an XID clears if NVML cannot tell; 0 for never.",
        span=(0, 31_536_000),
    )
    health_ignored_xids: str = setting(
        "",
        "More XIDs that leave a GPU healthy, as 109,119.",
        form=_XIDS,
    )
    health_critical_xids: str = setting(
        "",
        "XIDs of applications that make a GPU unhealthy, as 13,31.",
        form=_XIDS,
    )
    health_taint: str = setting(
        "NoSchedule",
        f"Taint of an unhealthy GPU: {', '.join(TAINTS)}.",
        choices=TAINTS,
    )

    # The limits: where they come from, and what enforces them.
    isolation: str = setting(
        "soft",
        f"Default isolation (docs/limits.md): {', '.join(OF_CARDS)}.",
        choices=OF_CARDS,
    )
    enforcer: str = setting(
        registered.AUTO,
        f"Enforcers, of which the first present is used: {registered.AUTO} for "
        f"{','.join(registered.IN_AUTO)}; {registered.NONE} for advisory limits.",
        form=(_NAMES, f"names with commas, as {','.join(registered.IN_AUTO[-2:])}"),
    )
    require_enforcement: bool = setting(
        False,
        "Have claims also wait until the one named enforcer answers (docs/limits.md).",
    )
    enforcer_wait_seconds: float = setting(
        0.0,
        "How long pods wait at the scheduler for an enforcer (docs/limits.md).",
        span=(0, 600),
    )
    observe_use: bool = setting(
        False,
        "Observe what each share uses (docs/limits.md).",
    )
    preload: str = setting(
        "file",
        "How containers load a limiter: file (ld.so.preload), env (LD_PRELOAD).",
        choices=tuple(PreloadMethod),
    )
    default_compute_limit: str = setting(
        "request",
        "Compute limit of shares that ask for none: request, or card unless overcommit-limits.",
        choices=("request", "card"),
    )
    overcommit_limits: bool = setting(
        False,
        "Let limits add up to more than a card.",
    )
    lending_factor: int = setting(
        4,
        f"Largest memory limit under {', '.join(registered.names_with('keeps_lent_memory'))}, as a "
        "multiple of the request.",
        span=(1, 100_000),
    )
    resize: bool = setting(
        True,
        "Follow changes of limits on claims whose containers run (docs/use.md).",
    )
    read_pods: bool = setting(
        True,
        "Read limits from pods' annotations.",
    )
    tensor_fusion_root: str = setting(
        "/run/tensor-fusion",
        "Folder of limits documents and of enforcers' files.",
        is_path=True,
    )

    # The process: its intervals, its probes, its log.
    gone_seconds: float = setting(
        600.0,
        "How long a claim must be gone from the API server before its share is freed.",
        span=(0.1, 1_000_000),
    )
    drain_seconds: float = setting(
        45.0,
        "How long calls in flight may take after SIGTERM.",
        span=(0, 600),
    )
    health_address: str = setting(
        "",
        "Where to serve /healthz, /readyz and the status page, as :8081.",
        form=LISTENING,
    )
    disable_provider: str = setting(
        "",
        "Providers of other packages to turn off, as rack,fans (docs/extend.md).",
        form=(f"({_NAMES})?", "names with commas, as rack,fans"),
    )
    status_page: str = setting(
        LOOPBACK,
        "Who gets the status page: off (nobody), loopback (kubectl port-forward), on (everybody).",
        choices=(*STATUS_PAGES, *STATUS_PAGES_IN_YAML),
    )
    log_level: str = setting(
        "info", f"Lowest level that is logged: {', '.join(LOG_LEVELS)}.", choices=LOG_LEVELS
    )
    log_format: str = setting(
        "json", f"Format of log lines: {', '.join(LOG_FORMATS)}.", choices=LOG_FORMATS
    )

    # The metrics: where they are served, and how many series they have.
    metrics_address: str = setting(
        "",
        "Where to serve /metrics; nowhere if empty.",
        form=LISTENING,
    )
    metrics_shares: int = setting(
        1000,
        "Maximum number of shares that have metrics; others are only counted.",
        span=(0, 100_000),
    )

    def __post_init__(self) -> None:
        setting_sources.check(self)
        size = len(f"{self.gpupool}/{self.node_name}")
        if size > name_rules.POOL_NAME_BYTES:
            raise InputError(
                f"gpupool/node-name: {size} characters, expected at most "
                f"{name_rules.POOL_NAME_BYTES}"
            )
        for name in self.candidates:
            registered.entry_point(name)
        if self.enforcer == registered.NONE and self.require_enforcement:
            raise InputError("require-enforcement: found true and enforcer none, expected false")
        if self.is_choice and registered.NONE in self.candidates:
            raise InputError(f"enforcer: found {self.enforcer}, expected none to be alone")
        expands = self.oversubscription is not None and self.oversubscription.expands_memory
        if expands and not self.expands_memory:
            raise InputError(
                f"enforcer: found {', '.join(self.candidates)}, which cannot expand a GPU's "
                f"memory, expected {', '.join(registered.names_with('expands_memory'))} with "
                "vram-expand-to-host-mem or vram-expand-to-host-disk above 0"
            )

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return the names of the enforcers to choose from, in their order."""
        several = (registered.SIMULATED,) if self.simulated_gpus else registered.IN_AUTO
        named = self.enforcer.split(",")
        every = (several if name == registered.AUTO else (name,) for name in named)
        return tuple(dict.fromkeys(chain.from_iterable(every)))

    @property
    def is_choice(self) -> bool:
        """Return True if the first enforcer that is there is taken, False if one is named."""
        return self.enforcer == registered.AUTO or "," in self.enforcer

    @property
    def expands_memory(self) -> bool:
        """Return True if one of them can extend a card's memory by the host's."""
        return any(registered.facts(name).expands_memory for name in self.candidates)

    @property
    def oversubscription(self) -> Oversubscription | None:
        """Return the node's oversubscription; None if it hands out no more than its GPUs have."""
        ratios = Oversubscription(
            tflops_percent=self.tflops_oversell_ratio,
            host_memory_percent=self.vram_expand_to_host_mem,
            host_disk_percent=self.vram_expand_to_host_disk,
        )
        return None if ratios == NO_MORE else ratios

    @property
    def disk_folder(self) -> Path:
        """Return a folder on the disk into which a pool expands its GPUs' memory."""
        return Path(self.data_dir or self.kubelet_root)

    @property
    def registry_folder(self) -> Path:
        """Return the folder in which the kubelet looks for plugins."""
        return Path(self.kubelet_root) / "plugins_registry"

    @property
    def data_folder(self) -> Path:
        """Return this driver's own folder."""
        return Path(self.kubelet_root) / "plugins" / names.DRIVER

    @property
    def status_page_mode(self) -> str:
        """Return one of STATUS_PAGES."""
        return STATUS_PAGES_IN_YAML.get(self.status_page, self.status_page)


def from_flags(flags: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings from flags, environment and file.

    The node name defaults to the host name in lower case.

    Raises:
        InputError: A setting is unknown, unreadable or out of its range.
    """
    values = setting_sources.values(Settings, flags, environment)
    values["node_name"] = values.get("node_name") or socket.gethostname().lower()
    return Settings(**values)
