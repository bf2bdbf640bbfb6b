"""Check of the folders that the node plugin shares with kubelet, runtime and hypervisor."""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.doctor import folders as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.folders import Folder, Use

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ELSEWHERE: Final = (
    "set --kubelet-root to the kubelet's --root-dir (microk8s: "
    "/var/snap/microk8s/common/var/lib/kubelet); in a pod, mount it at the same path"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """One mount; the defaults stand for an unknown one."""

    point: str = "/"
    filesystem: str = ""
    shared: bool = True


_REGISTRY: Final = Use(what="registration folder", missing_cure=_ELSEWHERE)
_DATA: Final = Use(what="data folder", may_be_made=True, keeps=True)
_CDI: Final = Use(what="CDI folder", may_be_made=True)
_HYPERVISOR: Final = Use(what="hypervisor's folder", may_be_made=True, propagated=True)
_OF_CONTAINERS: Final = Use(
    what="folder that containers write to", may_be_made=True, of_containers=True
)
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
        enforcer = node_parts.chosen_enforcer(settings)
        is_own = enforcer.name == TensorFusion.name
        if folder := f"{settings.tensor_fusion_root}/shm" if is_own else enforcer.claims_root:
            uses.append((Path(folder).resolve(), _OF_CONTAINERS))
    mounts = _mounts()
    for path, use in uses:
        yield from rules.findings(_read_folder(path, mounts), use, in_pod=context.in_pod)


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
    mount = _mount_of(path, mounts)
    return Folder(
        path=str(path),
        is_folder=stat.S_ISDIR(status.st_mode),
        mode=stat.S_IMODE(status.st_mode),
        writable=os.access(path, os.W_OK | os.X_OK),
        read_only=bool(space.f_flag & os.ST_RDONLY),
        filesystem=mount.filesystem,
        mount_point=mount.point,
        shared=mount.shared,
        free_bytes=space.f_bavail * space.f_frsize,
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
            found[point] = _Mount(point=point, filesystem=kind[0], shared=shared)
    return found


def _mount_of(path: Path, mounts: Mapping[str, _Mount]) -> _Mount:
    real = path.resolve()
    points = (str(folder) for folder in (real, *real.parents))
    return next((mounts[point] for point in points if point in mounts), _Mount())
