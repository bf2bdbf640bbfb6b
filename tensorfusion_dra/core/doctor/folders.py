"""Findings about the folders that the node plugin needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.doctor.finding import Finding, not_checked, ok, problem, warning

_LEAST_FREE_BYTES: Final = 16 * 2**20
_OTHERS_MAY_WRITE: Final = 0o002
_STICKY: Final = 0o1000
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
        of_host: It must be the host's folder, not the container's.
        propagated: Pods mount it with mountPropagation.
        of_containers: Containers write to it, so it should be a file system of its own.
        missing_cure: What to do if it is missing; "" to create it.
    """

    what: str
    may_be_made: bool = False
    written: bool = True
    keeps: bool = False
    of_host: bool = True
    propagated: bool = False
    of_containers: bool = False
    missing_cure: str = ""


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
    if use.of_host and in_pod and folder.filesystem in _OF_CONTAINERS:
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
    if folder.mode & _OTHERS_MAY_WRITE and not folder.mode & _STICKY:
        yield warning(
            subject,
            f"mode {folder.mode:04o}: every user of the node may write there",
            expected="writable only by root: another user's file may become part of a container",
            cure=f"chmod o-w {folder.path}",
        )
