"""The settings of the node plugin: default < file < environment < flag, checked once."""

import argparse
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.shared import setting_forms, setting_sources
from tensorfusion_dra.app.shared.setting_sources import LOG_FORMATS, LOG_LEVELS
from tensorfusion_dra.app.shared.setting_sources import check_choice as _check_choice
from tensorfusion_dra.app.shared.setting_sources import flag as _flag
from tensorfusion_dra.app.shared.setting_sources import setting as _setting
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers.kinds import KINDS
from tensorfusion_dra.core.claims.enforcers.preload import Way
from tensorfusion_dra.core.devices.gpupool import DEFAULT_QOS, QOS_LEVELS
from tensorfusion_dra.core.devices.oversubscription import NO_MORE, Oversubscription
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import InputError

BOOLEANS: Final = ("true", "false")
ENFORCERS: Final = tuple(KINDS)
POOL_SOURCES: Final = ("settings", "object", "node-labels")
TAINTS: Final = ("NoSchedule", "NoExecute", "none")

_POD_UID: Final = re.compile(r"[A-Za-z0-9-]{0,63}")
_FOLDERS: Final = ("kubelet_root", "cdi_dir", "static_cdi_dir", "driver_root", "tensor_fusion_root")
_OPTIONAL_FOLDERS: Final = ("dev_dir", "driver_root_on_host", "data_dir", "hypervisor_sockets")
_RANGES: Final = {
    "hypervisor_port": (1, 65535),
    "health_port": (0, 65535),
    "health_failed_readings": (1, 1000),
    "health_good_readings": (1, 1000),
    "tflops_oversell_ratio": (100, 100_000),
    "vram_expand_to_host_mem": (0, 100),
    "vram_expand_to_host_disk": (0, 100),
    "recover_seconds": (1, 86_400),
    "gone_seconds": (1, 1_000_000),
    "check_seconds": (1, 1_000_000),
    "poll_seconds": (0.1, 86_400),
    "nvml_wait_seconds": (0.1, 600),
    "health_quiet_seconds": (0, 86_400),
    "health_xid_clear_seconds": (0, 31_536_000),
    "drain_seconds": (0, 600),
}
"""Least and greatest value of each number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the node plugin.

    A setting's flag is its name with dashes. Its environment variable is in docs/settings.md.
    """

    node_name: str = _setting(
        "", "Name of this node's Node object; the host name if empty.", env="NODE_NAME"
    )
    pod_uid: str = _setting(
        "",
        "UID of this pod: keeps the sockets of two instances apart during a rolling update.",
        env="POD_UID",
    )
    kubeconfig: str = _setting(
        "", "File with access to the API server; the pod's service account if empty."
    )
    pool_source: str = _setting(
        "settings",
        "Where GPUPool, level of service and expansion come from: settings; object (the GPUPool "
        "that gpupool names, in the cluster); node-labels (the one whose node selector selects "
        "this node).",
    )
    gpupool: str = _setting("default", "GPUPool that this node belongs to.")
    qos: str = _setting(DEFAULT_QOS, f"Level of service of the GPUs: {', '.join(QOS_LEVELS)}.")
    tflops_oversell_ratio: int = _setting(
        100, "Compute that the node hands out, in percent of its GPUs'; 100 to 100000."
    )
    vram_expand_to_host_mem: int = _setting(
        0, "Part of the host's memory by which the GPUs' memory is expanded, in percent."
    )
    vram_expand_to_host_disk: int = _setting(
        0, "Part of the data disk by which the GPUs' memory is expanded, in percent."
    )
    data_dir: str = _setting(
        "",
        "Any folder on the disk into which a pool expands its GPUs' memory; the kubelet's root "
        "folder if empty.",
    )
    kubelet_root: str = _setting(
        "/var/lib/kubelet", "The kubelet's root folder, under the same path here as on the host."
    )
    cdi_dir: str = _setting("/var/run/cdi", "Folder in which the runtime looks for CDI specs.")
    static_cdi_dir: str = _setting(
        "/etc/cdi", "Folder of the host's own CDI specs, such as those of NVIDIA's toolkit."
    )
    dev_dir: str = _setting(
        "",
        "Folder of the host's device nodes; if empty /dev, or the driver root's dev where that has "
        "them, as NVIDIA's driver container does.",
    )
    nvml_library: str = _setting(
        "", "Path of libnvidia-ml.so.1; searched by the loader, then in the driver root, if empty."
    )
    driver_root: str = _setting("/", "Root folder of the NVIDIA driver's files.")
    driver_root_on_host: str = _setting(
        "", "Path of the driver-root folder on the host; the same path if empty."
    )
    gpu_models: str = _setting(
        "", "YAML or JSON file with TFLOPS by model; it overrides the package's own table."
    )
    boot_id_file: str = _setting(
        "/proc/sys/kernel/random/boot_id", "File that names the current boot of the host."
    )
    recover_seconds: float = _setting(
        60.0, "Interval at which CDI specs and limits are compared with the records, in seconds."
    )
    gone_seconds: float = _setting(
        600.0,
        "How long a claim must be gone from the API server, while the Node is Ready, before its "
        "share is freed without a call of the kubelet, in seconds.",
    )
    check_seconds: float = _setting(
        21600.0, "Longest time between two looks at whether a claim still exists, in seconds."
    )
    simulated_gpus: str = _setting(
        "",
        "GPUs to simulate instead of NVML's: a text such as 8xA100-SXM4-80GB, or a file.",
    )
    poll_seconds: float = _setting(30.0, "How often the GPUs are read again, in seconds.")
    nvml_wait_seconds: float = _setting(
        30.0, "How long one reading of the GPUs may take before it counts as hung, in seconds."
    )
    health_events: str = _setting(
        "true",
        "Whether to wait for the NVIDIA driver's reports (XIDs): true, false. This keeps healthy "
        "GPUs open, so that the NVIDIA driver cannot be unloaded.",
    )
    health_failed_readings: int = _setting(
        2, "Readings in a row without any answer after which the GPUs are unhealthy."
    )
    health_good_readings: int = _setting(
        3, "Readings in a row without trouble before a GPU is healthy again."
    )
    health_quiet_seconds: float = _setting(
        120.0, "Time without trouble before a GPU is healthy again, in seconds."
    )
    health_xid_clear_seconds: float = _setting(
        0.0,
        "Time after which an XID counts as cleared where the NVIDIA driver does not say whether "
        "the GPU needs a reset, in seconds; 0 for never.",
    )
    health_ignored_xids: str = _setting(
        "", "XIDs that leave a GPU healthy, beside NVIDIA's application errors, as 109,119."
    )
    health_critical_xids: str = _setting(
        "", "XIDs that make a GPU unhealthy although they are application errors, as 13,31."
    )
    health_taint: str = _setting(
        "NoSchedule", f"Effect of the taint of an unhealthy GPU: {', '.join(TAINTS)}."
    )
    drain_seconds: float = _setting(
        45.0, "How long calls in flight may take after SIGTERM or SIGINT, in seconds."
    )
    health_host: str = _setting(
        "", "Address to serve /healthz and /readyz on over plain HTTP; all addresses if empty."
    )
    health_port: int = _setting(0, "Port for /healthz and /readyz; 0 for none.")
    isolation: str = _setting(
        "soft", f"Isolation of a share that names none: {', '.join(Isolation)}."
    )
    enforcer: str = _setting("tensor-fusion", f"What enforces the limits: {', '.join(ENFORCERS)}.")
    require_enforcement: str = _setting(
        "false",
        "Whether to refuse claims whose limits nothing on this node would enforce: true, false.",
    )
    preload: str = _setting(
        "file",
        f"How containers load a limiter's library: {', '.join(Way)} (ld.so.preload, LD_PRELOAD).",
    )
    overcommit_limits: str = _setting(
        "false", "Whether memory limits may add up to more than a card has: true, false."
    )
    read_pods: str = _setting(
        "true",
        "Whether to read limits from the annotations of pods whose claims name none: true, false.",
    )
    tensor_fusion_root: str = _setting(
        "/run/tensor-fusion",
        "Folder of Tensor Fusion's hypervisor: limiter, shared memory, claims.",
    )
    hypervisor_ip: str = _setting(
        "", "Address at which containers reach the hypervisor; none if empty."
    )
    hypervisor_port: int = _setting(8001, "The hypervisor's port.")
    hypervisor_sockets: str = _setting(
        "", "Folder of the hypervisor's device plugin sockets; if empty, it is not told of pods."
    )
    hami_core_library: str = _setting(
        "/usr/local/vgpu/libvgpu.so.1",
        "HAMi-core's library on the host, a file that is never overwritten in place.",
    )
    mps_pipes: str = _setting("/run/nvidia/mps/pipe", "Pipe folder of the MPS daemon on the host.")
    mps_shm: str = _setting("/run/nvidia/mps/shm", "Shared memory of the MPS daemon on the host.")
    log_level: str = _setting("info", f"Lowest level that is logged: {', '.join(LOG_LEVELS)}.")
    log_format: str = _setting("json", f"Format of log lines: {', '.join(LOG_FORMATS)}.")

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_names()
        self._check_folders()
        for name, (least, most) in _RANGES.items():
            setting_sources.check_range(_flag(name), getattr(self, name), least, most)
        setting_forms.check_xids("health-ignored-xids", self.health_ignored_xids)
        setting_forms.check_xids("health-critical-xids", self.health_critical_xids)
        self._check_expansion()

    def _check_choices(self) -> None:
        _check_choice("pool-source", self.pool_source, POOL_SOURCES)
        _check_choice("qos", self.qos, QOS_LEVELS)
        _check_choice("isolation", self.isolation, tuple(Isolation))
        _check_choice("enforcer", self.enforcer, ENFORCERS)
        _check_choice("preload", self.preload, tuple(Way))
        _check_choice("health-taint", self.health_taint, TAINTS)
        _check_choice("log-level", self.log_level, LOG_LEVELS)
        _check_choice("log-format", self.log_format, LOG_FORMATS)
        for name in ("require_enforcement", "overcommit_limits", "read_pods", "health_events"):
            _check_choice(_flag(name), getattr(self, name), BOOLEANS)

    def _check_names(self) -> None:
        setting_forms.check_subdomain("node-name", self.node_name)
        setting_forms.check_subdomain("gpupool", self.gpupool)
        size, most = len(f"{self.gpupool}/{self.node_name}"), setting_forms.LONGEST_POOL
        if size > most:
            raise InputError(f"gpupool/node-name: {size} characters, expected at most {most}")
        if _POD_UID.fullmatch(self.pod_uid) is None:
            raise InputError(f"pod-uid: found {self.pod_uid!r}, expected letters, digits, dashes")

    def _check_folders(self) -> None:
        for name in (*_FOLDERS, *_OPTIONAL_FOLDERS):
            found = getattr(self, name)
            unset = not found and name in _OPTIONAL_FOLDERS
            if not unset and not Path(found).is_absolute():
                raise InputError(f"{_flag(name)}: found {found!r}, expected an absolute path")

    def _check_expansion(self) -> None:
        ratios = self.oversubscription
        if ratios and ratios.expands_memory and not KINDS[self.enforcer].expands_memory:
            able = ", ".join(name for name, kind in KINDS.items() if kind.expands_memory)
            raise InputError(
                f"enforcer: found {self.enforcer}, which cannot expand a GPU's memory, expected "
                f"{able} with vram-expand-to-host-mem or vram-expand-to-host-disk above 0"
            )

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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each setting, and --config."""
    setting_sources.add_flags(parser, Settings)


def from_flags(flags: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Return the settings from flags, environment and file.

    The node name defaults to the host name in lower case.

    Raises:
        InputError: A setting is unknown, unreadable or out of its range.
    """
    values = setting_sources.values(Settings, flags, environment)
    values["node_name"] = values.get("node_name") or socket.gethostname().lower()
    return Settings(**values)
