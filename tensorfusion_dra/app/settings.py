"""The settings of a node plugin: default < file < environment < flag, checked once."""

import argparse
import re
import socket
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.gpupool import DEFAULT_QOS, QOS_LEVELS
from tensorfusion_dra.core.oversubscription import NO_MORE, Oversubscription
from tensorfusion_dra.core.share_parameters import Isolation
from tensorfusion_dra.discovery import yaml_file
from tensorfusion_dra.discovery.yaml_file import shown

BOOLEANS: Final = ("true", "false")
ENFORCERS: Final = ("tensor-fusion", "hami-core", "mps")
POOL_SOURCES: Final = ("settings", "object", "node-labels")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("json", "console")

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_POD_UID: Final = re.compile(r"[A-Za-z0-9-]{0,63}")
_MAX_POOL: Final = 253


def _setting(default: str | float | int, about: str, *, env: str = "") -> Any:
    return field(default=default, metadata={"about": about, "env": env})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings; the flag of each is its name with dashes, its variable stands in the table."""

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
    data_dir: str = _setting("/var/lib/kubelet", "Any folder on the host's data disk.")
    kubelet_root: str = _setting(
        "/var/lib/kubelet", "The kubelet's root folder, under the same path here as on the host."
    )
    cdi_dir: str = _setting("/var/run/cdi", "Folder in which the runtime looks for CDI specs.")
    dev_dir: str = _setting("/dev", "Folder of the host's device nodes.")
    nvml_library: str = _setting(
        "", "Path of libnvidia-ml.so.1; searched by the loader, then in the driver root, if empty."
    )
    driver_root: str = _setting("/", "Root folder of the NVIDIA driver's files.")
    gpu_models: str = _setting(
        "", "YAML or JSON file with TFLOPS by model, before the table that comes with the package."
    )
    simulated_gpus: str = _setting(
        "",
        "GPUs to pretend to have, instead of NVML's: a text such as 8xA100-SXM4-80GB, or a file.",
    )
    poll_seconds: float = _setting(30.0, "How often the GPUs are read again, in seconds.")
    drain_seconds: float = _setting(
        45.0, "How long calls in flight may take when the process is told to stop, in seconds."
    )
    isolation: str = _setting(
        "soft", f"Isolation of a share that names none: {', '.join(Isolation)}."
    )
    enforcer: str = _setting("tensor-fusion", f"What enforces the limits: {', '.join(ENFORCERS)}.")
    overcommit_limits: str = _setting(
        "false", "Whether memory limits may add up to more than a card has: true, false."
    )
    read_pods: str = _setting(
        "true", "Whether limits are read from pods whose claim names none: true, false."
    )
    tensor_fusion_root: str = _setting(
        "/run/tensor-fusion",
        "Folder of Tensor Fusion's hypervisor: limiter, shared memory, claims.",
    )
    hypervisor_ip: str = _setting("", "Where containers reach the hypervisor; left out if empty.")
    hypervisor_port: int = _setting(8001, "The hypervisor's port.")
    hami_core_library: str = _setting(
        "/usr/local/vgpu/libvgpu.so.1",
        "HAMi-core's library on the host, a file that is never overwritten in place.",
    )
    mps_pipes: str = _setting("/run/nvidia/mps/pipe", "Pipe folder of the MPS daemon on the host.")
    mps_shm: str = _setting("/run/nvidia/mps/shm", "Shared memory of the MPS daemon on the host.")
    log_level: str = _setting("info", f"Least level that is logged: {', '.join(LOG_LEVELS)}.")
    log_format: str = _setting("json", f"How a line looks: {', '.join(LOG_FORMATS)}.")

    def __post_init__(self) -> None:
        _check_choice("pool-source", self.pool_source, POOL_SOURCES)
        _check_choice("qos", self.qos, QOS_LEVELS)
        _check_choice("isolation", self.isolation, tuple(Isolation))
        _check_choice("enforcer", self.enforcer, ENFORCERS)
        _check_choice("overcommit-limits", self.overcommit_limits, BOOLEANS)
        _check_choice("read-pods", self.read_pods, BOOLEANS)
        _check_range("hypervisor-port", self.hypervisor_port, 1, 65535)
        _check_choice("log-level", self.log_level, LOG_LEVELS)
        _check_choice("log-format", self.log_format, LOG_FORMATS)
        _check_subdomain("node-name", self.node_name)
        _check_subdomain("gpupool", self.gpupool)
        if len(f"{self.gpupool}/{self.node_name}") > _MAX_POOL:
            raise InputError(
                f"gpupool/node-name: {len(f'{self.gpupool}/{self.node_name}')} characters, "
                f"expected at most {_MAX_POOL}"
            )
        if _POD_UID.fullmatch(self.pod_uid) is None:
            raise InputError(f"pod-uid: found {self.pod_uid!r}, expected letters, digits, dashes")
        for name in (
            "kubelet_root",
            "cdi_dir",
            "dev_dir",
            "driver_root",
            "data_dir",
            "tensor_fusion_root",
        ):
            if not Path(getattr(self, name)).is_absolute():
                found = getattr(self, name)
                raise InputError(f"{_flag(name)}: found {found!r}, expected an absolute path")
        _check_range("tflops-oversell-ratio", self.tflops_oversell_ratio, 100, 100_000)
        _check_range("vram-expand-to-host-mem", self.vram_expand_to_host_mem, 0, 100)
        _check_range("vram-expand-to-host-disk", self.vram_expand_to_host_disk, 0, 100)
        if not 0.1 <= self.poll_seconds <= 86400:
            raise InputError(f"poll-seconds: found {self.poll_seconds}, expected 0.1 to 86400")
        if not 0 <= self.drain_seconds <= 600:
            raise InputError(f"drain-seconds: found {self.drain_seconds}, expected 0 to 600")

    @property
    def oversubscription(self) -> Oversubscription | None:
        """How much more than its GPUs the node hands out; None for no more."""
        ratios = Oversubscription(
            tflops_percent=self.tflops_oversell_ratio,
            host_memory_percent=self.vram_expand_to_host_mem,
            host_disk_percent=self.vram_expand_to_host_disk,
        )
        return None if ratios == NO_MORE else ratios

    @property
    def registry_folder(self) -> Path:
        """The folder in which the kubelet looks for plugins."""
        return Path(self.kubelet_root) / "plugins_registry"

    @property
    def data_folder(self) -> Path:
        """This driver's own folder."""
        return Path(self.kubelet_root) / "plugins" / names.DRIVER


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag a setting, and --config."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings by flag name.")
    for item in fields(Settings):
        default = f" Default: {item.default}." if item.default != "" else ""
        parser.add_argument(
            f"--{_flag(item.name)}",
            metavar=item.name.rsplit("_", maxsplit=1)[-1].upper(),
            help=f"{item.metadata['about']}{default} Variable: {variable(item)}.",
        )


def from_flags(flags: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """The settings that flags, environment and file give together.

    Raises:
        InputError: One of them is unknown, unreadable or out of its range.
    """
    values: dict[str, Any] = {}
    config = flags.config or environment.get("TENSORFUSION_DRA_CONFIG")
    if config:
        values.update(_from_file(Path(config)))
    for item in fields(Settings):
        if environment.get(variable(item)):
            values[item.name] = environment[variable(item)]
        if getattr(flags, item.name) is not None:
            values[item.name] = getattr(flags, item.name)
    values["node_name"] = values.get("node_name") or socket.gethostname().lower()
    for item in fields(Settings):
        if not isinstance(item.default, str) and item.name in values:
            kind = float if isinstance(item.default, float) else int
            values[item.name] = _number(item.name, values[item.name], kind)
    return Settings(**values)


def variable(item: "Field[Any]") -> str:
    """The environment variable of a setting."""
    return item.metadata["env"] or f"TENSORFUSION_DRA_{item.name.upper()}"


def _from_file(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml_file.content(path)
    except InputError as error:
        raise InputError(f"config {error}") from error
    if not isinstance(loaded, dict):
        raise InputError(f"config {path}: found {type(loaded).__name__}, expected a mapping")
    known = {_flag(item.name): item.name for item in fields(Settings)}
    values = {}
    for key, value in loaded.items():
        if key not in known:
            raise InputError(
                f"config {path}: found {shown(key)}, expected one of {', '.join(known)}"
            )
        if not isinstance(value, str | int | float):
            raise InputError(
                f"config {path}: {key}: found {shown(value)}, expected text or a number"
            )
        values[known[key]] = str(value).lower() if isinstance(value, bool) else str(value)
    return values


def _number(name: str, value: object, kind: type[int] | type[float]) -> float:
    try:
        return kind(str(value))
    except ValueError as error:
        expected = "a whole number" if kind is int else "a number"
        raise InputError(f"{_flag(name)}: found {value!r}, expected {expected}") from error


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{name}: found {value}, expected {least} to {most}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}: found {value!r}, expected one of {', '.join(choices)}")


def _check_subdomain(name: str, value: str) -> None:
    if len(value) > _MAX_POOL or _SUBDOMAIN.fullmatch(value) is None:
        raise InputError(f"{name}: found {value!r}, expected a DNS subdomain in lower case")


def _flag(name: str) -> str:
    return name.replace("_", "-")
