"""Container runtime that reads CDI specs and merges their devices into containers.

Both follow container-device-interface, pkg/cdi (cache.go and container-edits.go). Hooks are
validated but not run.
"""

import json
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.cdi_rules import CdiError
from tensorfusion_dra.runtime import untyped_yaml

_KINDS: Final = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


class ContainerError(DriverError):
    """A container cannot be created."""


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One device of a CDI spec, and the file of that spec.

    Attributes:
        edits: The device's own containerEdits.
        spec_edits: containerEdits of the whole spec. They apply once to a container, even if it
            uses several devices of the spec.
    """

    name: str
    path: Path
    edits: Mapping[str, Any]
    spec_edits: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CdiDevices:
    """Devices of all CDI specs of a node.

    Attributes:
        devices: Usable devices by qualified name.
        errors: The reason, by file, why the file or one of its devices is not used.
    """

    devices: Mapping[str, CdiDevice]
    errors: Mapping[Path, str]


def cdi_devices(folders: Iterable[Path]) -> CdiDevices:
    """Read the specs in these folders; later folders override earlier ones."""
    devices: dict[str, CdiDevice] = {}
    errors: dict[Path, str] = {}
    conflicts: set[str] = set()
    for folder in folders:
        here: dict[str, list[CdiDevice]] = {}
        for path in _files(folder):
            try:
                found = devices_of(path, path.read_text())
            except (CdiError, OSError, ValueError) as error:
                errors[path] = str(error)
                continue
            for device in found:
                here.setdefault(device.name, []).append(device)
        for name, candidates in here.items():
            devices[name] = candidates[0]
            if len(candidates) == 1:
                continue
            # Two files of equal priority describe the device, so neither is used.
            conflicts.add(name)
            for candidate in candidates:
                others = (str(other.path) for other in candidates if other is not candidate)
                errors[candidate.path] = f"conflicting device {name} in {', '.join(others)}"
    return CdiDevices({name: devices[name] for name in devices.keys() - conflicts}, errors)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in {".json", ".yaml"})


def devices_of(path: Path, text: str) -> list[CdiDevice]:
    """Return the devices of one spec.

    Raises:
        CdiError: The spec is invalid.
    """
    try:
        spec = json.loads(text) if path.suffix == ".json" else untyped_yaml.document(text)
    except (ValueError, InputError) as error:
        raise CdiError(f"{path}: {error}") from error
    if not isinstance(spec, dict):
        raise CdiError(f"{path}: found {type(spec).__name__}, expected an object")
    try:
        cdi_rules.check(spec)
    except CdiError as error:
        raise CdiError(f"{path}: {error}") from error
    shared = spec.get("containerEdits") or {}
    return [
        CdiDevice(f"{spec['kind']}={device['name']}", path, device["containerEdits"], shared)
        for device in spec["devices"]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """Device node in a container.

    Attributes:
        kind: Type as in mknod: c, b, u or p.
    """

    path: str
    host_path: str
    kind: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Host path mounted into a container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Environment, device nodes and mounts that a process in the container would see.

    Attributes:
        cdi_ids: Requested CDI devices, in the order of the request.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_ids: tuple[str, ...] = ()


def container(
    cdi_ids: Sequence[str], folders: Iterable[Path], *, env: Mapping[str, str] | None = None
) -> Container:
    """Return the container with these CDI devices.

    Args:
        folders: Folders with CDI specs, in ascending priority.
        env: Variables that the pod sets; those of the devices override them.

    Raises:
        ContainerError: No spec describes a device, or the host lacks a path of its spec.
    """
    found = cdi_devices(folders)
    # As in containerd 2: a repeated id counts once.
    wanted = list(dict.fromkeys(cdi_ids))
    missing = [name for name in wanted if name not in found.devices]
    if missing:
        reasons = "".join(f"; {path}: {error}" for path, error in found.errors.items())
        raise ContainerError(
            f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}{reasons}"
        )
    edits: list[Mapping[str, Any]] = []
    seen: set[Path] = set()
    for name in wanted:
        device = found.devices[name]
        if device.path not in seen:
            seen.add(device.path)
            edits.append(device.spec_edits)
        edits.append(device.edits)
    return _edited(edits, env or {}, tuple(cdi_ids))


def _edited(
    edits: Iterable[Mapping[str, Any]], env: Mapping[str, str], cdi_ids: tuple[str, ...]
) -> Container:
    variables = dict(env)
    nodes: dict[str, DeviceNode] = {}
    mounts: dict[str, Mount] = {}
    for edit in edits:
        for entry in edit.get("env") or ():
            name, _, value = entry.partition("=")
            variables[name] = value
        for entry in edit.get("deviceNodes") or ():
            nodes.pop(entry["path"], None)
            nodes[entry["path"]] = _device_node(entry)
        for entry in edit.get("mounts") or ():
            mounts.pop(entry["containerPath"], None)
            mounts[entry["containerPath"]] = _mount(entry)
    return Container(
        env=variables,
        device_nodes=tuple(nodes.values()),
        mounts=tuple(mounts.values()),
        cdi_ids=cdi_ids,
    )


def _device_node(entry: Mapping[str, Any]) -> DeviceNode:
    """Return the device node; the host's node is read only if the spec lacks its type or number."""
    host_path = entry.get("hostPath") or entry["path"]
    kind = entry.get("type", "")
    if not kind or (kind != "p" and not entry.get("major")):
        try:
            found = _KINDS.get(stat.S_IFMT(Path(host_path).lstat().st_mode))
        except OSError as error:
            raise ContainerError(
                f"CDI device injection failed: failed to stat CDI host device {host_path}:"
                f" {error.strerror}"
            ) from error
        if found is None or kind not in {"", found}:
            raise ContainerError(
                f"CDI device injection failed: CDI host device {host_path}: found no device node"
                f" of type {kind or 'b, c or p'}"
            )
        kind = found
    permissions = entry.get("permissions") or "rwm"
    return DeviceNode(path=entry["path"], host_path=host_path, kind=kind, permissions=permissions)


def _mount(entry: Mapping[str, Any]) -> Mount:
    if not Path(entry["hostPath"]).exists():
        raise ContainerError(
            f"OCI runtime create failed: error mounting {entry['hostPath']} to rootfs at"
            f" {entry['containerPath']}: no such file or directory"
        )
    return Mount(
        host_path=entry["hostPath"],
        container_path=entry["containerPath"],
        options=tuple(entry.get("options") or ()),
    )


class Runtime:
    """Containers of a node; they outlive the kubelet, so a restarted kubelet finds them again."""

    def __init__(self, cdi_dirs: Sequence[Path]) -> None:
        self._cdi_dirs: Final = tuple(cdi_dirs)
        self._lock: Final = Lock()  # guards _pods
        self._pods: Final[dict[str, dict[str, Container]]] = {}

    def create(
        self, pod_uid: str, name: str, *, cdi_ids: Sequence[str], env: Mapping[str, str]
    ) -> Container:
        """Create a container of a pod and return it.

        Raises:
            ContainerError: Its CDI devices cannot be merged into it.
        """
        made = container(cdi_ids, self._cdi_dirs, env=env)
        with self._lock:
            self._pods.setdefault(pod_uid, {})[name] = made
        return made

    def containers(self, pod_uid: str) -> dict[str, Container]:
        """Return the containers of a pod by name; empty if it has none."""
        with self._lock:
            return dict(self._pods.get(pod_uid, {}))

    def stop(self, pod_uid: str) -> None:
        """Remove all containers of a pod."""
        with self._lock:
            self._pods.pop(pod_uid, None)
