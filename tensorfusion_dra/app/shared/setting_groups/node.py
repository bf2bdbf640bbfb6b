"""Settings of the node: its name, its pool, the folders of kubelet, runtime and NVIDIA driver."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.shared.setting_forms import (
    LONGEST_POOL,
    check_path,
    check_subdomain,
)
from tensorfusion_dra.app.shared.setting_sources import (
    check_boolean,
    check_choice,
    check_ranges,
    flag,
    setting,
)
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpupool import DEFAULT_QOS, QOS_LEVELS
from tensorfusion_dra.core.devices.oversubscription import NO_MORE, Oversubscription
from tensorfusion_dra.core.errors import InputError

POOL_SOURCES: Final = ("settings", "object", "node-labels")

_POD_UID: Final = re.compile(r"[A-Za-z0-9-]{0,63}")
_FOLDERS: Final = ("kubelet_root", "cdi_dir", "static_cdi_dir", "driver_root")
_OPTIONAL_FOLDERS: Final = ("dev_dir", "driver_root_on_host", "data_dir")
_RANGES: Final = {
    "tflops_oversell_ratio": (100, 100_000),
    "vram_expand_to_host_mem": (0, 100),
    "vram_expand_to_host_disk": (0, 100),
}


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Settings of the node."""

    node_name: str = setting(
        "", "Name of this node's Node object; the host name if empty.", env="NODE_NAME"
    )
    pod_uid: str = setting(
        "",
        "UID of this pod: keeps the sockets of two instances apart during a rolling update.",
        env="POD_UID",
    )
    kubeconfig: str = setting(
        "", "File with access to the API server; the pod's service account if empty."
    )
    pool_source: str = setting(
        "settings",
        "Where GPUPool, level of service and expansion come from: settings; object (the GPUPool "
        "that gpupool names, in the cluster); node-labels (the one whose node selector selects "
        "this node).",
    )
    gpupool: str = setting("default", "GPUPool that this node belongs to.")
    qos: str = setting(DEFAULT_QOS, f"Level of service of the GPUs: {', '.join(QOS_LEVELS)}.")
    tflops_oversell_ratio: int = setting(
        100, "Compute that the node hands out, in percent of its GPUs'; 100 to 100000."
    )
    vram_expand_to_host_mem: int = setting(
        0, "Part of the host's memory by which the GPUs' memory is expanded, in percent."
    )
    vram_expand_to_host_disk: int = setting(
        0, "Part of the data disk by which the GPUs' memory is expanded, in percent."
    )
    data_dir: str = setting(
        "",
        "Any folder on the disk into which a pool expands its GPUs' memory; the kubelet's root "
        "folder if empty.",
    )
    kubelet_root: str = setting(
        "/var/lib/kubelet", "The kubelet's root folder, under the same path here as on the host."
    )
    cdi_dir: str = setting("/var/run/cdi", "Folder in which the runtime looks for CDI specs.")
    static_cdi_dir: str = setting(
        "/etc/cdi", "Folder of the host's own CDI specs, such as those of NVIDIA's toolkit."
    )
    device_metadata: str = setting(
        "false",
        "Whether containers get files with the attributes of their devices (KEP-5304): true, "
        "false.",
    )
    dev_dir: str = setting(
        "",
        "Folder of the host's device nodes; if empty /dev, or the driver root's dev where that has "
        "them, as NVIDIA's driver container does.",
    )
    driver_root: str = setting("/", "Root folder of the NVIDIA driver's files.")
    driver_root_on_host: str = setting(
        "", "Path of the driver-root folder on the host; the same path if empty."
    )
    boot_id_file: str = setting(
        "/proc/sys/kernel/random/boot_id", "File that names the current boot of the host."
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

    def _check_node(self) -> None:
        check_choice("pool-source", self.pool_source, POOL_SOURCES)
        check_choice("qos", self.qos, QOS_LEVELS)
        check_boolean("device-metadata", self.device_metadata)
        check_ranges(self, _RANGES)
        for name in _FOLDERS:
            check_path(flag(name), getattr(self, name))
        for name in _OPTIONAL_FOLDERS:
            check_path(flag(name), getattr(self, name), optional=True)
        check_subdomain("node-name", self.node_name)
        check_subdomain("gpupool", self.gpupool)
        size = len(f"{self.gpupool}/{self.node_name}")
        if size > LONGEST_POOL:
            raise InputError(
                f"gpupool/node-name: {size} characters, expected at most {LONGEST_POOL}"
            )
        if _POD_UID.fullmatch(self.pod_uid) is None:
            raise InputError(f"pod-uid: found {self.pod_uid!r}, expected letters, digits, dashes")
