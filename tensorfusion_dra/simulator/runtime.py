"""Makes containers as a container runtime does: the CDI devices of a container merged into it.

The merging follows container-device-interface, pkg/cdi (cache.go and container-edits.go); a hook is
checked and not run.
"""

import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.simulator.node import cdi_specs

_KINDS: Final = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


class ContainerError(DriverError):
    """A container cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node in a container.

    Attributes:
        kind: c, b, u or p.
    """

    path: str
    host_path: str
    kind: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path in a container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a process in the container would find.

    Attributes:
        cdi_ids: What it was made with, in the order of the request.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_ids: tuple[str, ...] = ()


def container(
    cdi_ids: Sequence[str], folders: Iterable[Path], *, env: Mapping[str, str] | None = None
) -> Container:
    """The container with these CDI devices.

    Args:
        folders: Where specs are, by rising priority.
        env: What the pod sets; the devices' variables win.

    Raises:
        ContainerError: A device is not described, or names something that the host has not.
    """
    found = cdi_specs.read(folders)
    # As containerd 2 does: an id that comes twice counts once.
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
    """The host's device is looked at only if the spec does not say what it is."""
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
    """The containers of a node; they outlive the kubelet, so a restarted one gets the same."""

    def __init__(self, cdi_dirs: Sequence[Path]) -> None:
        self._cdi_dirs: Final = tuple(cdi_dirs)
        self._lock: Final = Lock()  # guards _pods
        self._pods: Final[dict[str, dict[str, Container]]] = {}

    def create(
        self, pod_uid: str, name: str, *, cdi_ids: Sequence[str], env: Mapping[str, str]
    ) -> Container:
        """The new container.

        Raises:
            ContainerError: It cannot be made.
        """
        made = container(cdi_ids, self._cdi_dirs, env=env)
        with self._lock:
            self._pods.setdefault(pod_uid, {})[name] = made
        return made

    def containers(self, pod_uid: str) -> dict[str, Container]:
        """The containers of a pod by name; empty if it has none."""
        with self._lock:
            return dict(self._pods.get(pod_uid, {}))

    def stop(self, pod_uid: str) -> None:
        """The pod has no containers any more."""
        with self._lock:
            self._pods.pop(pod_uid, None)
