"""Check of the folders that the node plugin shares with kubelet, runtime and hypervisor."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, ok, problem, warning

_ELSEWHERE: Final = (
    "set --kubelet-root to the kubelet's --root-dir (microk8s: "
    "/var/snap/microk8s/common/var/lib/kubelet); in a pod, mount it at the same path"
)
_MIN_FREE_BYTES: Final = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """State of a folder.

    Attributes:
        mode: Permission bits.
        is_mount: It is a file system of its own.
        is_of_container: It is on the root file system of the container in which this process runs.
        writable: True if the user of this process may write to it.
    """

    path: str
    mode: int = 0o755
    is_mount: bool = False
    is_of_container: bool = False
    writable: bool = True
    read_only: bool = False
    free_bytes: int = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Purpose of a folder, with its requirements.

    Attributes:
        what: Name of the purpose, such as ``registration folder``.
        may_be_made: The node plugin creates it if it is missing.
        written: The node plugin writes to it.
        of_containers: Containers write to it, so it should be a file system of its own.
        missing_cure: What to do if it is missing; "" to create it.
    """

    what: str
    may_be_made: bool = False
    written: bool = True
    of_containers: bool = False
    missing_cure: str = ""


_REGISTRY: Final = Use(what="registration folder", missing_cure=_ELSEWHERE)
_DATA: Final = Use(what="data folder", may_be_made=True)
_CDI: Final = Use(what="CDI folder", may_be_made=True)
_HYPERVISOR: Final = Use(what="hypervisor's folder", may_be_made=True)
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
    for path, use in uses:
        yield from of_path(path, use, in_pod=context.in_pod)


def of_path(path: Path, use: Use, *, in_pod: bool) -> Iterator[Finding]:
    """Judge a path: one finding if it is fine, else one for each fault."""
    subject = f"{use.what} {path}"
    try:
        status, space = path.stat(), os.statvfs(path)
    except FileNotFoundError:
        if use.may_be_made:
            yield ok(subject, "not created yet; the node plugin creates it")
        else:
            cure = use.missing_cure or f"mkdir -p {path}"
            yield problem(subject, "not found", expected="a folder", cure=cure)
        return
    except OSError as error:
        reason = error.strerror or str(error)
        yield not_checked(subject, reason, cure="run this as root on the node")
        return
    if not stat.S_ISDIR(status.st_mode):
        cure = use.missing_cure or f"mkdir -p {path}"
        yield problem(subject, "not a folder", expected="a folder", cure=cure)
        return
    folder = FolderState(
        path=str(path),
        mode=stat.S_IMODE(status.st_mode),
        is_mount=path.is_mount(),
        is_of_container=in_pod and status.st_dev == Path("/").stat().st_dev,
        writable=os.access(path, os.W_OK | os.X_OK),
        read_only=bool(space.f_flag & os.ST_RDONLY),
        free_bytes=space.f_bavail * space.f_frsize,
    )
    yield from [*faults(folder, use)] or [ok(subject, f"mode {folder.mode:04o}")]


def faults(folder: FolderState, use: Use) -> Iterator[Finding]:
    """Yield what is wrong with a folder: only the node plugin should write there."""
    subject = f"{use.what} {folder.path}"
    if folder.is_of_container:
        yield problem(
            subject,
            "on the container's own file system",
            expected="the host's folder, which the kubelet and the runtime see",
            cure=f"mount the host path {folder.path} at the same path into the pod",
        )
    elif use.of_containers and not folder.is_mount:
        yield warning(
            subject,
            "no mount: a container can fill its file system, and then no claim of the node can be "
            "prepared",
            expected="a tmpfs of its own",
            cure="reboot the node, and the chart's DaemonSet mounts one; without the chart at each "
            f"boot: mount -t tmpfs -o nosuid,nodev,noexec,size=512M tmpfs {folder.path}",
        )
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
    elif use.written and folder.free_bytes < _MIN_FREE_BYTES:
        yield problem(
            subject,
            f"{folder.free_bytes // 2**20} MiB free",
            expected=f"at least {_MIN_FREE_BYTES // 2**20} MiB",
            cure="make room; claims fail on a full disk",
        )
    if folder.mode & stat.S_IWOTH and not folder.mode & stat.S_ISVTX:
        yield warning(
            subject,
            f"mode {folder.mode:04o}: every user of the node may write there",
            expected="writable only by root: another user's file may become part of a container",
            cure=f"chmod o-w {folder.path}",
        )
