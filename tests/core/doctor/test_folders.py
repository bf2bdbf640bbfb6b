"""Findings about the node plugin's folders."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import folders
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.folders import Folder, Use

REGISTRY = Use(what="registration folder", missing_cure="--kubelet-root")
DATA = Use(what="data folder", may_be_made=True, keeps=True)


def levels(use: Use, *, in_pod: bool = False, **facts: Any) -> list[Level]:
    folder = Folder(path="/var/lib/kubelet/x", **facts)
    return [finding.level for finding in folders.findings(folder, use, in_pod=in_pod)]


def test_folder_on_the_hosts_disk_is_fine() -> None:
    assert levels(REGISTRY, filesystem="ext4") == [Level.OK]
    assert levels(DATA, filesystem="ext4", mode=0o700) == [Level.OK]


def test_missing_folder_is_a_problem_unless_the_node_plugin_creates_it() -> None:
    folder = Folder(path="/r", exists=False)

    (finding,) = folders.findings(folder, REGISTRY, in_pod=False)

    assert (finding.level, finding.cure) == (Level.PROBLEM, "--kubelet-root")
    assert levels(DATA, exists=False) == [Level.OK]
    assert levels(DATA, is_folder=False) == [Level.PROBLEM]


def test_containers_own_file_system_is_a_problem() -> None:
    assert levels(REGISTRY, filesystem="overlay", in_pod=True) == [Level.PROBLEM]
    # On the host itself overlay is the root file system of some systems.
    assert levels(REGISTRY, filesystem="overlay", in_pod=False) == [Level.OK]


@pytest.mark.parametrize("filesystem", ["tmpfs", "nfs4"])
def test_data_that_must_survive_a_reboot_needs_a_local_disk(filesystem: str) -> None:
    assert levels(DATA, filesystem=filesystem) == [Level.WARNING]
    assert levels(REGISTRY, filesystem=filesystem) == [Level.OK]


def test_private_mount_is_a_warning_for_folders_with_mount_propagation() -> None:
    use = Use(what="hypervisor's folder", propagated=True)

    assert levels(use, shared=False) == [Level.WARNING]
    assert levels(use, shared=True) == [Level.OK]
    assert levels(use, shared=False, in_pod=True) == [Level.OK]
    assert levels(REGISTRY, shared=False) == [Level.OK]


def test_folder_that_containers_write_to_should_be_a_file_system_of_its_own() -> None:
    use = Use(what="folder that containers write to", of_containers=True)

    assert levels(use, mount_point="/run") == [Level.WARNING]
    assert levels(use, mount_point="/var/lib/kubelet/x", filesystem="tmpfs") == [Level.OK]
    assert levels(use, mount_point="/var/lib/kubelet/x", free_bytes=0) == [Level.PROBLEM]


def test_written_folder_must_be_writable_and_have_free_space() -> None:
    assert levels(DATA, read_only=True, writable=False) == [Level.PROBLEM]
    assert levels(DATA, writable=False) == [Level.COULD_NOT_LOOK]
    assert levels(DATA, free_bytes=2**20) == [Level.PROBLEM]
    assert levels(Use(what="devices", written=False), read_only=True) == [Level.OK]


def test_world_writable_folder_needs_the_sticky_bit() -> None:
    assert levels(REGISTRY, mode=0o777) == [Level.WARNING]
    assert levels(REGISTRY, mode=0o1777) == [Level.OK]


def test_folder_that_cannot_be_examined_is_reported_with_its_reason() -> None:
    folder = Folder(path="/r", trouble="Permission denied")

    (finding,) = folders.findings(folder, REGISTRY, in_pod=False)

    assert (finding.level, finding.found) == (Level.COULD_NOT_LOOK, "Permission denied")
