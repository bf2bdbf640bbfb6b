"""The host as containers with a card need it: device nodes, driver libraries, sizes, boot ID."""

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.discovery import host
from tensorfusion_dra.discovery.host import HostDeviceNodes, HostDriverFiles, MachineSizes
from tests.support.logs import capture_logs

NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia0")


def make_nodes(folder: Path, names: Sequence[str] = NODES) -> Path:
    """Create a folder with these nodes, all of them character devices."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).symlink_to("/dev/null")
    return folder


@pytest.mark.parametrize(
    ("folders", "shown"),
    [
        ({"folder": "dev"}, "{root}/dev"),
        ({"driver_root": "", "root_on_host": "/run/nvidia/driver"}, "/run/nvidia/driver/dev"),
        ({"folder": "named", "driver_root": ""}, "{root}/named"),
    ],
    ids=["host", "driver container", "configured folder comes first"],
)
def test_nodes_have_their_paths_on_the_host(
    tmp_path: Path, folders: dict[str, str], shown: str
) -> None:
    for name in ("dev", "named"):
        make_nodes(tmp_path / name, (*NODES, "nvidia-uvm-tools"))

    nodes = HostDeviceNodes(**{name: tmp_path / folder for name, folder in folders.items()})

    names = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    expected = tuple(f"{shown.format(root=tmp_path)}/{name}" for name in names)
    assert (*nodes.of_card(0), *nodes.common()) == expected
    # Those of a partition may be newer than this process's /dev.
    assert nodes.of_card(0, (66, 67))[1:] == tuple(
        f"{shown.format(root=tmp_path)}/nvidia-caps/nvidia-cap{number}" for number in (66, 67)
    )


def test_host_has_the_nodes_until_the_driver_container_starts(tmp_path: Path) -> None:
    nodes = HostDeviceNodes(driver_root=tmp_path)
    (tmp_path / "dev").mkdir()
    before = nodes.folder()

    make_nodes(tmp_path / "dev", NODES[:2])

    assert (before, nodes.folder()) == (Path("/dev"), tmp_path / "dev")
    assert len(nodes.common()) == 2  # there may be no nvidia-uvm-tools


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda nodes: nodes.of_card(0), "nvidia0: No such file"),
        (lambda nodes: nodes.of_card(1), "nvidia1: found another kind of file"),
        (HostDeviceNodes.common, "nvidia-uvm: No such file"),
    ],
)
def test_missing_node_and_plain_file_are_errors_with_the_path(
    tmp_path: Path, read: Callable[[HostDeviceNodes], object], error: str
) -> None:
    make_nodes(tmp_path, ("nvidiactl",))
    (tmp_path / "nvidia1").touch()

    with pytest.raises(RetryableError, match=f"device node {tmp_path}/{error}"):
        read(HostDeviceNodes(tmp_path))


UUID: Final = "GPU-8f3a0000-0000-4000-8000-00000000000A"
VERSION: Final = "550.54.15"
DEBIAN: Final = "usr/lib/x86_64-linux-gnu"


def spec(*names: str, kind: str = "nvidia.com/gpu") -> dict[str, Any]:
    edits = {"deviceNodes": [{"path": "/dev/nvidia0"}]}
    devices = [{"name": name, "containerEdits": edits} for name in names]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": devices}


def driver(root: Path, *cdi_folders: Path, on_host: Path | None = None) -> HostDriverFiles:
    return HostDriverFiles(root, root_on_host=on_host, cdi_folders=cdi_folders, machine="x86_64")


def library(root: Path, soname: str, *, folder: str = DEBIAN) -> Path:
    """Create a library as packages install it: a file with the version, and a link to it."""
    file = root / folder / f"{soname.partition('.so')[0]}.so.{VERSION}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"\x7fELF")
    if soname != file.name:
        (file.parent / soname).symlink_to(file.name)
    return file


def required(root: Path, *, folder: str = DEBIAN) -> None:
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        library(root, soname, folder=folder)


def mounted(files: HostDriverFiles) -> dict[str, str]:
    """Return the host's paths by the container's, of mounts that are all read-only."""
    mounts = files.mounts()
    found = {mount.container_path: mount.host_path for mount in mounts if mount.read_only}
    assert len(found) == len(mounts)
    return found


@pytest.mark.parametrize(
    ("name", "document", "is_found"),
    [
        ("nvidia.json", spec("0", UUID, "all"), True),
        ("nvidia.yaml", spec("0", UUID, "all"), True),
        # Names of another form, and kinds of other specs.
        ("nvidia.json", spec("0", "all"), False),
        ("nvidia.json", spec(UUID.lower()), False),
        ("nvidia.json", spec(UUID[:-1]), False),
        ("nvidia.json", spec(UUID, kind="k8s.device-plugin.nvidia.com/gpu"), False),
        ("nvidia.json", spec(UUID, kind="management.nvidia.com/gpu"), False),
        ("nvidia.json", spec(UUID, kind="nvidia.com/mig"), False),
        # Files that runtimes ignore, and our own specs.
        ("nvidia.yml", spec(UUID), False),
        ("nvidia.json.tmp", spec(UUID), False),
        ("tensor-fusion.ai-vgpu_a.json", spec(UUID), False),
    ],
)
def test_card_named_by_uuid_in_a_toolkit_spec_has_a_toolkit_device(
    tmp_path: Path, name: str, document: dict[str, Any], *, is_found: bool
) -> None:
    document = {**document, "devices": [*document["devices"], None, {}, {"name": 7}]}
    write = json.dumps if "json" in name else yaml.safe_dump
    (tmp_path / name).write_text(write(document))

    with capture_logs() as logs:
        found = driver(tmp_path, tmp_path / "none", tmp_path).toolkit_device(UUID)

    assert (found, logs) == (f"nvidia.com/gpu={UUID}" if is_found else None, [])


def test_new_changed_and_removed_specs_are_noticed(tmp_path: Path) -> None:
    files, path = driver(tmp_path, tmp_path), tmp_path / "nvidia.json"
    seen = [files.toolkit_device(UUID)]

    for document in (spec(UUID), spec("0"), spec("0", UUID)):
        path.write_text(json.dumps(document))
        seen.append(files.toolkit_device(UUID))
    path.unlink()

    device = f"nvidia.com/gpu={UUID}"
    assert [*seen, files.toolkit_device(UUID)] == [None, device, None, device, None]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"{"),
        ("a.json", b"\xff\xfe\x00"),
        ("a.json", b"[" * 100_000),
        ("a.json", b"[]"),
        ("a.json", b" " * 2**20 + b"{}"),
        ("a.yaml", b"a: [b"),
        ("a.yaml", b"- a"),
        ("a.yaml", b"kind: nvidia.com/gpu\ndevices: {}"),
        ("a.yaml", b"kind: nvidia.com/gpu"),
        ("a.yaml", b""),
    ],
)
def test_malformed_spec_is_logged_once_and_does_not_affect_others(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "nvidia.json").write_text(json.dumps(spec(UUID)))
    files = driver(tmp_path, tmp_path)

    with capture_logs() as logs:
        found = [files.toolkit_device(name) for name in (UUID, "another", "another")]

    assert found == [f"nvidia.com/gpu={UUID}", None, None]
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("toolkit_spec_skipped", "warning")
    assert str(tmp_path / name) in line["error"]


def test_libraries_are_mounted_under_every_name_in_both_loader_folders(
    tmp_path: Path,
) -> None:
    required(tmp_path)

    assert mounted(driver(tmp_path)) == {
        f"{folder}/{name}.{suffix}": f"{tmp_path}/{DEBIAN}/{name}.so.{VERSION}"
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
        for name, suffixes in {
            "libcuda": ("so", "so.1", f"so.{VERSION}"),
            "libnvidia-ml": ("so.1", f"so.{VERSION}"),
        }.items()
        for suffix in suffixes
    }


def test_optional_libraries_and_nvidia_smi_are_mounted_if_present(tmp_path: Path) -> None:
    required(tmp_path)
    compiler = library(tmp_path, "libnvidia-ptxjitcompiler.so.1")
    shared = library(tmp_path, f"libnvidia-gpucomp.so.{VERSION}")
    command = library(tmp_path, "nvidia-smi", folder="usr/bin")

    found = mounted(driver(tmp_path))

    assert found == found | {
        "/usr/lib64/libnvidia-ptxjitcompiler.so.1": str(compiler),
        f"/usr/lib64/libnvidia-ptxjitcompiler.so.{VERSION}": str(compiler),
        f"/usr/lib64/libnvidia-gpucomp.so.{VERSION}": str(shared),
        "/usr/bin/nvidia-smi": str(command),
    }


@pytest.mark.parametrize(
    ("folder", "on_host"),
    [
        ("usr/lib64", None),
        ("usr/lib", None),
        ("home/kubernetes/bin/nvidia/lib64", None),
        (DEBIAN, Path("/run/nvidia/driver")),
    ],
)
def test_libraries_are_found_in_the_folders_of_all_distributions_and_have_paths_on_the_host(
    tmp_path: Path, folder: str, on_host: Path | None
) -> None:
    required(tmp_path, folder=folder)

    found = mounted(driver(tmp_path, on_host=on_host))

    expected = (on_host or tmp_path) / folder / f"libcuda.so.{VERSION}"
    assert found["/usr/lib64/libcuda.so.1"] == str(expected)


def test_absolute_links_are_resolved_within_the_driver_root(tmp_path: Path) -> None:
    required(tmp_path, folder="usr/lib/nvidia/current")
    links = {DEBIAN: "/etc/alternatives", "etc/alternatives": "/usr/lib/nvidia/current"}
    for folder, target in links.items():
        (tmp_path / folder).mkdir(parents=True)
        for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (tmp_path / folder / soname).symlink_to(f"{target}/{soname}")

    found = mounted(driver(tmp_path))

    cuda = tmp_path / "usr/lib/nvidia/current" / f"libcuda.so.{VERSION}"
    assert found["/usr/lib64/libcuda.so.1"] == str(cuda)


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_missing_required_library_is_an_error_with_its_name(tmp_path: Path, soname: str) -> None:
    required(tmp_path)
    (tmp_path / DEBIAN / soname).unlink()

    with pytest.raises(RetryableError, match=f"{soname}: found in no .*{tmp_path}.*usr/lib64"):
        driver(tmp_path).mounts()


def test_dangling_and_circular_links_are_skipped(tmp_path: Path) -> None:
    required(tmp_path)
    for name, target in (("nvidia-nvvm.so.4", "gone"), ("nvcuvid.so.1", "libnvcuvid.so.1")):
        (tmp_path / DEBIAN / f"lib{name}").symlink_to(target)

    assert not any("nvvm" in path or "nvcuvid" in path for path in mounted(driver(tmp_path)))


def test_sizes_are_those_of_the_machine_and_of_the_whole_file_system(tmp_path: Path) -> None:
    memory_kb = re.search(r"MemTotal: +([0-9]+) kB", Path("/proc/meminfo").read_text())
    disk = os.statvfs(tmp_path)

    assert memory_kb
    assert MachineSizes(tmp_path).memory_bytes() == int(memory_kb[1]) * 1024
    assert MachineSizes(tmp_path).disk_bytes() == disk.f_frsize * disk.f_blocks


def test_missing_disk_is_an_error_with_its_path_and_setting(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match=f"data disk: {tmp_path}/none: No such.*data-dir"):
        MachineSizes(tmp_path / "none").disk_bytes()


def test_boot_id_is_the_text_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    file.write_text("705ab4f5-6393-11e8-b7cc-42010a800002\n")

    assert host.boot_id(file) == "705ab4f5-6393-11e8-b7cc-42010a800002"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\n", "found nothing, expected the ID of this boot"),
        ("é".encode(), "'ascii' codec"),
    ],
)
def test_file_without_a_boot_id_is_an_error(tmp_path: Path, content: bytes, error: str) -> None:
    file = tmp_path / "boot_id"
    file.write_bytes(content)

    with pytest.raises(InputError, match=f"^boot-id-file {file}: {error}"):
        host.boot_id(file)
