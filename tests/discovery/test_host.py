"""The host as containers with a card need it: device nodes, driver libraries, sizes, boot ID."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from structlog.testing import capture_logs

from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.discovery import host
from tensorfusion_dra.discovery.host import HostDeviceNodes, HostDriverFiles, HostSizes

NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia0")


def make_nodes(folder: Path, names: Sequence[str] = NODES) -> Path:
    """Create a folder with these nodes, all of them character devices."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).symlink_to("/dev/null")
    return folder


def test_nodes_have_their_paths_on_the_host(tmp_path: Path) -> None:
    dev = make_nodes(tmp_path / "dev", (*NODES, "nvidia-uvm-tools"))

    nodes = HostDeviceNodes(dev)

    assert nodes.of_card(0) == (f"{dev}/nvidia0",)
    assert nodes.common() == tuple(
        f"{dev}/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    )


def test_nodes_of_the_driver_container_have_their_paths_on_the_host(tmp_path: Path) -> None:
    make_nodes(tmp_path / "dev")

    nodes = HostDeviceNodes(driver_root=tmp_path, root_on_host=Path("/run/nvidia/driver"))

    assert nodes.of_card(0) == ("/run/nvidia/driver/dev/nvidia0",)
    assert nodes.common() == (
        "/run/nvidia/driver/dev/nvidiactl",
        "/run/nvidia/driver/dev/nvidia-uvm",
    )
    assert nodes.folder() == tmp_path / "dev"


def test_host_has_the_nodes_until_the_driver_container_starts(tmp_path: Path) -> None:
    nodes = HostDeviceNodes(driver_root=tmp_path)
    (tmp_path / "dev").mkdir()
    before = nodes.folder()

    make_nodes(tmp_path / "dev")

    assert (before, nodes.folder()) == (Path("/dev"), tmp_path / "dev")


def test_configured_folder_takes_precedence(tmp_path: Path) -> None:
    named = make_nodes(tmp_path / "named")
    make_nodes(tmp_path / "driver" / "dev")

    nodes = HostDeviceNodes(named, driver_root=tmp_path / "driver")

    assert nodes.of_card(0) == (f"{named}/nvidia0",)


def test_missing_node_and_plain_file_are_errors_with_the_path(tmp_path: Path) -> None:
    dev = make_nodes(tmp_path / "dev", ("nvidiactl",))
    (dev / "nvidia1").touch()
    nodes = HostDeviceNodes(dev)

    with pytest.raises(RetryableError, match=r"device node .*/dev/nvidia0: No such file"):
        nodes.of_card(0)
    with pytest.raises(
        RetryableError, match=r"device node .*/dev/nvidia1: found another kind of file"
    ):
        nodes.of_card(1)
    with pytest.raises(RetryableError, match=r"device node .*/dev/nvidia-uvm: No such file"):
        nodes.common()


UUID: Final = "GPU-8f3a0000-0000-4000-8000-00000000000A"
VERSION: Final = "550.54.15"
DEBIAN: Final = "usr/lib/x86_64-linux-gnu"


def spec(*names: str, kind: str = "nvidia.com/gpu") -> dict[str, Any]:
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
        for name in names
    ]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": devices}


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    folder = tmp_path / "cdi"
    folder.mkdir()
    return folder


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
    assert all(mount.read_only for mount in files.mounts())
    found = {mount.container_path: mount.host_path for mount in files.mounts()}
    assert len(found) == len(files.mounts())
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
    tmp_path: Path, cdi: Path, name: str, document: dict[str, Any], *, is_found: bool
) -> None:
    document["devices"] += [None, {}, {"name": 7}]
    text = yaml.safe_dump(document) if "json" not in name else json.dumps(document)
    (cdi / name).write_text(text)

    with capture_logs() as logs:
        found = driver(tmp_path, tmp_path / "none", cdi).toolkit_device(UUID)

    assert (found, logs) == (f"nvidia.com/gpu={UUID}" if is_found else None, [])


def test_new_changed_and_removed_specs_are_noticed(tmp_path: Path, cdi: Path) -> None:
    files, path = driver(tmp_path, cdi), cdi / "nvidia.json"
    seen = [files.toolkit_device(UUID)]

    for document in (spec(UUID), spec("0"), spec("0", UUID)):
        path.write_text(json.dumps(document))
        seen.append(files.toolkit_device(UUID))
    path.unlink()
    seen.append(files.toolkit_device(UUID))

    device = f"nvidia.com/gpu={UUID}"
    assert seen == [None, device, None, device, None]


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
    tmp_path: Path, cdi: Path, name: str, content: bytes
) -> None:
    (cdi / name).write_bytes(content)
    (cdi / "nvidia.json").write_text(json.dumps(spec(UUID)))
    files = driver(tmp_path, cdi)

    with capture_logs() as logs:
        found = [files.toolkit_device(name) for name in (UUID, "another", "another")]

    assert found == [f"nvidia.com/gpu={UUID}", None, None]
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("toolkit_spec_skipped", "warning")
    ]
    assert str(cdi / name) in logs[0]["error"]


def test_libraries_are_mounted_under_every_name_in_both_loader_folders(
    tmp_path: Path,
) -> None:
    required(tmp_path)

    cuda, nvml = (
        str(tmp_path / DEBIAN / f"{name}.so.{VERSION}") for name in ("libcuda", "libnvidia-ml")
    )
    assert mounted(driver(tmp_path)) == {
        f"{folder}/{name}": file
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
        for name, file in {
            "libcuda.so": cuda,
            "libcuda.so.1": cuda,
            f"libcuda.so.{VERSION}": cuda,
            "libnvidia-ml.so.1": nvml,
            f"libnvidia-ml.so.{VERSION}": nvml,
        }.items()
    }


def test_optional_libraries_and_nvidia_smi_are_mounted_if_present(
    tmp_path: Path,
) -> None:
    required(tmp_path)
    compiler = library(tmp_path, "libnvidia-ptxjitcompiler.so.1")
    shared = library(tmp_path, f"libnvidia-gpucomp.so.{VERSION}")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nvidia-smi").write_text("")

    found = mounted(driver(tmp_path))

    expected = {
        "/usr/lib64/libnvidia-ptxjitcompiler.so.1": str(compiler),
        f"/usr/lib64/libnvidia-ptxjitcompiler.so.{VERSION}": str(compiler),
        f"/usr/lib64/libnvidia-gpucomp.so.{VERSION}": str(shared),
        "/usr/bin/nvidia-smi": str(tmp_path / "usr/bin/nvidia-smi"),
    }
    assert found.items() >= expected.items()


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib", "home/kubernetes/bin/nvidia/lib64"])
def test_libraries_are_found_in_the_folders_of_all_distributions(
    tmp_path: Path, folder: str
) -> None:
    required(tmp_path, folder=folder)

    found = mounted(driver(tmp_path))

    assert found["/usr/lib64/libcuda.so.1"] == str(tmp_path / folder / f"libcuda.so.{VERSION}")


def test_absolute_links_are_resolved_within_the_driver_root(tmp_path: Path) -> None:
    required(tmp_path, folder="usr/lib/nvidia/current")
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / "etc/alternatives").mkdir(parents=True, exist_ok=True)
        (tmp_path / DEBIAN).mkdir(exist_ok=True)
        (tmp_path / DEBIAN / soname).symlink_to(f"/etc/alternatives/glx--{soname}")
        (tmp_path / "etc/alternatives" / f"glx--{soname}").symlink_to(
            f"/usr/lib/nvidia/current/{soname}"
        )

    found = mounted(driver(tmp_path))

    cuda = tmp_path / "usr/lib/nvidia/current" / f"libcuda.so.{VERSION}"
    assert found["/usr/lib64/libcuda.so.1"] == str(cuda)


def test_mounts_have_paths_on_the_host(tmp_path: Path) -> None:
    required(tmp_path)

    found = mounted(driver(tmp_path, on_host=Path("/run/nvidia/driver")))

    assert found["/usr/lib64/libcuda.so.1"] == f"/run/nvidia/driver/{DEBIAN}/libcuda.so.{VERSION}"


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_missing_required_library_is_an_error_with_its_name(tmp_path: Path, soname: str) -> None:
    required(tmp_path)
    (tmp_path / DEBIAN / soname).unlink()

    with pytest.raises(RetryableError, match=f"{soname}: found in no .*{tmp_path}.*usr/lib64"):
        driver(tmp_path).mounts()


def test_dangling_and_circular_links_are_skipped(tmp_path: Path) -> None:
    required(tmp_path)
    (tmp_path / DEBIAN / "libnvidia-nvvm.so.4").symlink_to("libnvidia-nvvm.so.gone")
    (tmp_path / DEBIAN / "libnvcuvid.so.1").symlink_to("libnvcuvid.so.1")

    assert not any("nvvm" in path or "nvcuvid" in path for path in mounted(driver(tmp_path)))


def test_memory_is_that_of_the_machine(tmp_path: Path) -> None:
    memory_kb = re.search(r"MemTotal: +([0-9]+) kB", Path("/proc/meminfo").read_text())

    assert memory_kb
    assert HostSizes(tmp_path).memory_bytes() == int(memory_kb[1]) * 1024


def test_disk_size_is_that_of_the_whole_file_system(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)

    assert HostSizes(tmp_path).disk_bytes() == disk.f_frsize * disk.f_blocks


def test_missing_disk_is_an_error_with_its_path_and_setting(tmp_path: Path) -> None:
    with pytest.raises(RetryableError, match=f"data disk: {tmp_path}/none: No such.*data-dir"):
        HostSizes(tmp_path / "none").disk_bytes()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"705ab4f5-6393-11e8-b7cc-42010a800002\n", None),
        (b"\n", "found nothing, expected the ID of this boot"),
        ("é".encode(), "'ascii' codec"),
    ],
)
def test_boot_id_is_the_text_of_its_file(tmp_path: Path, content: bytes, error: str | None) -> None:
    file = tmp_path / "boot_id"
    file.write_bytes(content)

    if error is None:
        assert host.boot_id(file) == content.decode().strip()
    else:
        with pytest.raises(InputError, match=f"^boot-id-file {file}: {error}"):
            host.boot_id(file)
