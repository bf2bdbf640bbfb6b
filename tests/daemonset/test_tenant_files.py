"""The tmpfs for folders that containers write to; its script is run by the machine's sh."""

import os
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.enforcers.hami_core import HamiCore
from tests.daemonset import scripts
from tests.daemonset.scripts import Container
from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm

pytestmark = pytest.mark.process

NAME: Final = "tenant-files"
MOUNT: Final = scripts.container("hypervisor", NAME)


def run(
    folder: Path, *, mounted: bool = False, mount_status: int = 0, written: str = "shm"
) -> tuple[int, str, str]:
    """Return status and output of the script, and how it called a stand-in for mount."""
    given = {"ROOT": f"{folder}/run", "WRITTEN": written}
    container = Container(of=MOUNT, root=folder, given=given)
    calls = container.put_mounts(mounted=mounted, status=mount_status)

    return *container.run(), calls.read_text()


@pytest.mark.parametrize("mount_status", [0, 32])
def test_new_folder_is_on_a_tmpfs_and_a_fault_does_not_keep_the_driver_from_starting(
    tmp_path: Path, mount_status: int
) -> None:
    status, _, calls = run(tmp_path, mount_status=mount_status)

    options = "nosuid,nodev,noexec,mode=0755,size=512M,nr_inodes=64k"
    assert calls == f"-t tmpfs -o {options} tensorfusion-dra {tmp_path}/run/shm\n"
    assert (tmp_path / "run" / "shm").is_dir()
    assert status == 0


def test_every_folder_of_several_enforcers_is_mounted(tmp_path: Path) -> None:
    calls = run(tmp_path, written="shm hami-core/claims")[2]

    folders = [line.rpartition("/run/")[2] for line in calls.splitlines()]
    assert folders == ["shm", "hami-core/claims"]


def test_mount_of_tensor_fusion_itself_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, mounted=True)[2] == ""


def test_files_of_running_pods_are_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "run" / "shm" / "default" / "trainer-0").mkdir(parents=True)

    status, output, calls = run(tmp_path)

    assert (status, calls) == (0, "")
    assert "becomes a tmpfs after the node's next reboot" in output


def test_folders_that_the_node_plugin_could_not_delete_are_deleted_and_no_other(
    tmp_path: Path,
) -> None:
    kept = [
        tmp_path / "run" / "shm" / "default" / "trainer-0",
        tmp_path / "run" / "hami-core" / "claims" / "uid-a" / ".mine.removed",
        tmp_path / "outside",
    ]
    for folder in kept:
        folder.mkdir(parents=True)
    for parent in ("shm/default", "hami-core/claims"):
        folder = tmp_path / "run" / parent / ".0123.removed"
        (folder / "deep").mkdir(parents=True)
        (folder / "link").symlink_to(tmp_path / "outside")
        os.mkfifo(folder / "deep" / "pipe")

    run(tmp_path, mounted=True)

    assert all(folder.is_dir() for folder in kept)
    assert not list((tmp_path / "run").glob("*/*/.0123.removed"))


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("nvidia", ["/run/tensor-fusion/shm", HamiCore(library="").claims_root]),
        ("hami-core", [HamiCore(library="").claims_root]),
        ("mps", []),
        ("simulated", []),
    ],
)
def test_tmpfs_is_where_the_enforcer_has_containers_write(
    variant: str, expected: list[str]
) -> None:
    every = helm.containers(helm.render(VARIANTS[variant]))
    found = [scripts.variables(each) for each in every if each["name"] == NAME]

    folders = [f"{each['ROOT']}/{name}" for each in found for name in each["WRITTEN"].split()]
    assert folders == expected


def test_nothing_is_privileged_if_the_administrator_mounts_it() -> None:
    values = {"nodePlugin": {"tenantFilesSize": ""}}

    assert NAME not in {each["name"] for each in helm.containers(helm.render(values))}
