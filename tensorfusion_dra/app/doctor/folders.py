"""Check of the folders that the node plugin shares with kubelet, runtime and hypervisor."""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, ok, problem, warning

_Mount = dict[str, Any]
"""Fields of a Folder that describe the mount on which it is."""

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ELSEWHERE: Final = (
    "set --kubelet-root to the kubelet's --root-dir (microk8s: "
    "/var/snap/microk8s/common/var/lib/kubelet); in a pod, mount it at the same path"
)
_LEAST_FREE_BYTES: Final = 16 * 2**20
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_OF_CONTAINERS: Final = frozenset({"overlay", "aufs"})
_OVER_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "fuse.glusterfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """State of a path.

    Attributes:
        trouble: Reason why it could not be examined; "" if it could.
        exists: False if there is nothing at the path.
        mode: Permission bits.
        writable: True if the user of this process may write to it.
        filesystem: Type of its file system, such as ext4; "" if unknown.
        mount_point: Mount point of that file system.
        shared: True for a shared mount: later mounts in it propagate to other mount namespaces.
    """

    path: str
    trouble: str = ""
    exists: bool = True
    is_folder: bool = True
    mode: int = 0o755
    writable: bool = True
    read_only: bool = False
    filesystem: str = ""
    mount_point: str = "/"
    shared: bool = True
    free_bytes: int = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Purpose of a folder, with its requirements.

    Attributes:
        what: Name of the purpose, such as ``registration folder``.
        may_be_made: The node plugin creates it if it is missing.
        written: The node plugin writes to it.
        keeps: Its content must survive a reboot.
        propagated: Pods mount it with mountPropagation.
        of_containers: Containers write to it, so it should be a file system of its own.
        missing_cure: What to do if it is missing; "" to create it.
    """

    what: str
    may_be_made: bool = False
    written: bool = True
    keeps: bool = False
    propagated: bool = False
    of_containers: bool = False
    missing_cure: str = ""


_REGISTRY: Final = Use(what="registration folder", missing_cure=_ELSEWHERE)
_DATA: Final = Use(what="data folder", may_be_made=True, keeps=True)
_CDI: Final = Use(what="CDI folder", may_be_made=True)
_HYPERVISOR: Final = Use(what="hypervisor's folder", may_be_made=True, propagated=True)
_TENANTS: Final = Use(what="folder that containers write to", may_be_made=True, of_containers=True)
_DEVICES: Final = Use(
    what="device folder", written=False, missing_cure="mount the host's /dev and set --dev-dir"
)


def folders(context: Context) -> Iterator[Finding]:
    """Check that each folder exists, is the host's own, and suits its use."""
    settings = context.settings
    uses = [
        (settings.registry_folder, _REGISTRY),
        (settings.data_folder, _DATA),
        (Path(settings.cdi_dir), _CDI),
        (Path(settings.tensor_fusion_root), _HYPERVISOR),
    ]
    if not settings.simulated_gpus:
        uses.append((node_parts.device_nodes(settings).folder(), _DEVICES))
        for enforcer in node_parts.candidates(settings).values():
            if folder := enforcer.tenants_folder:
                uses.append((Path(folder).resolve(), _TENANTS))
    mounts = _mounts()
    for path, use in uses:
        yield from findings(_read_folder(path, mounts), use, in_pod=context.in_pod)


def _read_folder(path: Path, mounts: Mapping[str, _Mount]) -> Folder:
    """Return the facts about a folder.

    Args:
        path: Its path.
        mounts: By mount point.
    """
    try:
        status = path.stat()
        space = os.statvfs(path)
    except FileNotFoundError:
        return Folder(path=str(path), exists=False)
    except OSError as error:
        return Folder(path=str(path), trouble=error.strerror or str(error))
    real = path.resolve()
    points = (str(folder) for folder in (real, *real.parents))
    mount = next((mounts[point] for point in points if point in mounts), {})
    return Folder(
        path=str(path),
        is_folder=stat.S_ISDIR(status.st_mode),
        mode=stat.S_IMODE(status.st_mode),
        writable=os.access(path, os.W_OK | os.X_OK),
        read_only=bool(space.f_flag & os.ST_RDONLY),
        free_bytes=space.f_bavail * space.f_frsize,
        **mount,
    )


def _mounts() -> dict[str, _Mount]:
    """Return the mounts by mount point; of several at one point, the last, which hides the rest."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        # id parent device root point options [optional fields] - type source options
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) >= 6 and kind:
            # Blanks and backslashes in a path are written in octal (proc(5)).
            point = fields[4].replace("\\040", " ").replace("\\134", "\\")
            shared = any(field.startswith("shared:") for field in fields[6:])
            found[point] = {"mount_point": point, "filesystem": kind[0], "shared": shared}
    return found


def findings(folder: Folder, use: Use, *, in_pod: bool) -> Iterator[Finding]:
    """Judge a folder: one finding if it is fine, else one for each fault.

    Args:
        in_pod: True if the path was examined from inside a container.
    """
    subject = f"{use.what} {folder.path}"
    if folder.trouble:
        yield not_checked(subject, folder.trouble, cure="run this as root on the node")
        return
    if not folder.exists and use.may_be_made:
        yield ok(subject, "not created yet; the node plugin creates it")
        return
    if not folder.exists or not folder.is_folder:
        yield problem(
            subject,
            "not a folder" if folder.exists else "not found",
            expected="a folder",
            cure=use.missing_cure or f"mkdir -p {folder.path}",
        )
        return
    troubles = [*_placed(subject, folder, use, in_pod=in_pod), *_used(subject, folder, use)]
    yield from troubles or [
        ok(subject, f"mode {folder.mode:04o}, on {folder.filesystem or 'a file system'}")
    ]


def _placed(subject: str, folder: Folder, use: Use, *, in_pod: bool) -> Iterator[Finding]:
    """Yield faults of the file system on which the folder is."""
    found = f"on {folder.filesystem} mounted at {folder.mount_point}"
    if in_pod and folder.filesystem in _OF_CONTAINERS:
        yield problem(
            subject,
            f"{found}, the container's own file system",
            expected="the host's folder, which the kubelet and the runtime see",
            cure=f"mount the host path {folder.path} at the same path into the pod",
        )
    elif use.propagated and not folder.shared and not in_pod:
        yield warning(
            subject,
            f"{found}, which is a private mount",
            expected="a shared mount, as under systemd: pods that mount it with mountPropagation, "
            "such as the DaemonSet's, do not start",
            cure="mount --make-rshared / at boot, before the runtime starts",
        )
    elif use.of_containers and folder.mount_point != folder.path:
        yield warning(
            subject,
            f"{found}: a container can fill that, and then no claim of the node can be prepared",
            expected="a tmpfs of its own",
            cure="reboot the node, and the chart's DaemonSet mounts one; without the chart at each "
            f"boot: mount -t tmpfs -o nosuid,nodev,noexec,size=512M tmpfs {folder.path}",
        )
    elif use.keeps and folder.filesystem in _IN_MEMORY:
        yield warning(
            subject,
            f"{found}: empty after a reboot",
            expected="a disk: lost records must be rebuilt from the API server",
            cure="put the kubelet's root folder on a disk",
        )
    elif use.keeps and folder.filesystem in _OVER_NETWORK:
        yield warning(
            subject,
            found,
            expected="a local disk: SQLite's locks and shared memory need one",
            cure="put the kubelet's root folder on a local disk",
        )


def _used(subject: str, folder: Folder, use: Use) -> Iterator[Finding]:
    """Yield faults of permissions and free space: only the node plugin should write there."""
    if use.written and folder.read_only:
        yield problem(
            subject,
            "mounted read-only",
            expected="writable",
            cure="take readOnly from its volumeMount, or mount the file system writable",
        )
    elif use.written and not folder.writable:
        yield not_checked(
            subject,
            "not writable by the user of this process",
            cure="run this as root on the node",
        )
    elif use.written and folder.free_bytes < _LEAST_FREE_BYTES:
        yield problem(
            subject,
            f"{folder.free_bytes // 2**20} MiB free",
            expected=f"at least {_LEAST_FREE_BYTES // 2**20} MiB",
            cure="make room; claims fail on a full disk",
        )
    if folder.mode & stat.S_IWOTH and not folder.mode & stat.S_ISVTX:
        yield warning(
            subject,
            f"mode {folder.mode:04o}: every user of the node may write there",
            expected="writable only by root: another user's file may become part of a container",
            cure=f"chmod o-w {folder.path}",
        )
