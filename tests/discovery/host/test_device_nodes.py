"""Device nodes: in the host's /dev, and in that of NVIDIA's driver container."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.host.device_nodes import HostDeviceNodes

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


def test_driver_root_without_the_control_device_falls_back_to_dev(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()

    nodes = HostDeviceNodes(driver_root=tmp_path)

    assert nodes.folder() == Path("/dev")


def test_driver_container_may_start_later(tmp_path: Path) -> None:
    nodes = HostDeviceNodes(driver_root=tmp_path)
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
