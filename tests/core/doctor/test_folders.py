"""Findings about the node plugin's folders."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import folders
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.folders import Folder, Use
from tests.support import findings

REGISTRY = Use(what="registration folder", missing_cure="--kubelet-root")
DATA = Use(what="data folder", may_be_made=True, keeps=True)
SHARED = Use(what="hypervisor's folder", propagated=True)
READ = Use(what="devices", written=False)
TENANTS = Use(what="folder that containers write to", of_containers=True)


@pytest.mark.parametrize(
    ("use", "facts", "level", "text"),
    [
        (REGISTRY, {"filesystem": "ext4"}, Level.OK, "mode 0755, on ext4"),
        (DATA, {"filesystem": "ext4", "mode": 0o700}, Level.OK, ""),
        (REGISTRY, {"exists": False}, Level.PROBLEM, "--kubelet-root"),
        (DATA, {"exists": False}, Level.OK, "not created yet"),
        (DATA, {"is_folder": False}, Level.PROBLEM, "not a folder"),
        (REGISTRY, {"filesystem": "overlay", "in_pod": True}, Level.PROBLEM, "the container's own"),
        # On the host itself overlay is the root file system of some systems.
        (REGISTRY, {"filesystem": "overlay"}, Level.OK, ""),
        (DATA, {"filesystem": "tmpfs"}, Level.WARNING, "empty after a reboot"),
        (DATA, {"filesystem": "nfs4"}, Level.WARNING, "a local disk"),
        (REGISTRY, {"filesystem": "tmpfs"}, Level.OK, ""),
        (SHARED, {"shared": False}, Level.WARNING, "a private mount"),
        (SHARED, {"shared": False, "in_pod": True}, Level.OK, ""),
        (SHARED, {"shared": True}, Level.OK, ""),
        (TENANTS, {"mount_point": "/run"}, Level.WARNING, "a container can fill that"),
        (TENANTS, {"mount_point": "/r", "filesystem": "tmpfs"}, Level.OK, ""),
        (TENANTS, {"mount_point": "/r", "free_bytes": 0}, Level.PROBLEM, "free"),
        (REGISTRY, {"shared": False}, Level.OK, ""),
        (DATA, {"read_only": True, "writable": False}, Level.PROBLEM, "mounted read-only"),
        (DATA, {"writable": False}, Level.COULD_NOT_LOOK, "not writable by the user"),
        (DATA, {"free_bytes": 2**20}, Level.PROBLEM, "1 MiB free"),
        (READ, {"read_only": True}, Level.OK, ""),
        (REGISTRY, {"mode": 0o777}, Level.WARNING, "mode 0777: every user"),
        (REGISTRY, {"mode": 0o1777}, Level.OK, ""),
        (REGISTRY, {"trouble": "Permission denied"}, Level.COULD_NOT_LOOK, "Permission denied"),
    ],
)
def test_folders(use: Use, facts: dict[str, Any], level: Level, text: str) -> None:
    in_pod = bool(facts.get("in_pod"))
    folder = Folder(path="/r", **{key: value for key, value in facts.items() if key != "in_pod"})

    findings.check(folders.findings(folder, use, in_pod=in_pod), [(level, text)])
