"""Socket paths fit into AF_UNIX addresses and never replace a live socket."""

import base64
import hashlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.errors import FatalError, InputError
from tensorfusion_dra.kubelet import socket_files, sockets
from tensorfusion_dra.kubelet.sockets import SocketPaths

DRIVER = "tensor-fusion.ai.dra-driver"
POD_UID = "8f3a1b2c-0000-4000-8000-00000000abcd"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="s"))
    yield folder
    shutil.rmtree(folder)


def paths(root: str = "/var/lib/kubelet", pod_uid: str = POD_UID) -> SocketPaths:
    return sockets.paths(
        registry_folder=Path(root) / "plugins_registry",
        data_folder=Path(root) / "plugins" / DRIVER,
        pod_uid=pod_uid,
    )


def digest(text: str, size: int) -> str:
    short = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(short).rstrip(b"=").decode()


def test_names_without_a_pod_contain_only_the_driver() -> None:
    found = paths(pod_uid="")

    assert str(found.registration) == f"/var/lib/kubelet/plugins_registry/{DRIVER}-reg.sock"
    assert str(found.dra) == f"/var/lib/kubelet/plugins/{DRIVER}/dra.sock"


def test_registration_path_with_a_pod_uid_fits_to_the_last_byte() -> None:
    found = paths()

    assert str(found.registration).endswith(f"/{DRIVER}-{POD_UID}-reg.sock")
    assert len(str(found.registration)) == 107
    assert str(found.dra).endswith(f"/dra-{POD_UID}.sock")
    assert len(str(found.dra)) == 98


WITH_UID = f"{DRIVER}-{POD_UID}-reg.sock"
WITH_HASH = f"{DRIVER}-{digest(POD_UID, 8)}-reg.sock"
SHORTEST = f"dra-{digest(DRIVER, 8)}{digest(POD_UID, 8)}-reg.sock"


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("/var/lib/kubelet", WITH_UID),
        ("/var/lib/kubelets", WITH_HASH),
        ("/var/lib/" + "k" * 32, WITH_HASH),
        ("/var/lib/" + "k" * 33, SHORTEST),
        ("/var/lib/" + "k" * 45, SHORTEST),
    ],
)
def test_longer_root_gets_the_next_shorter_name(root: str, name: str) -> None:
    path = sockets.paths(
        registry_folder=Path(root) / "plugins_registry", data_folder=Path("/d"), pod_uid=POD_UID
    ).registration

    assert path.name == name
    assert len(str(path)) <= 107


def test_dra_socket_has_a_shorter_name_too() -> None:
    found = paths("/var/snap/microk8s/common/var/lib/kubelet")

    assert found.dra.name == f"dra-{digest(POD_UID, 8)}.sock"
    assert len(str(found.dra)) <= 107


@pytest.mark.parametrize("pod_uid", ["", POD_UID])
def test_root_too_long_for_every_name_is_an_error_with_its_length(pod_uid: str) -> None:
    with pytest.raises(InputError, match=r"socket /k+/.*: [0-9]+ bytes, expected at most 107"):
        paths("/" + "k" * 200, pod_uid)


def test_length_is_counted_in_bytes_not_characters() -> None:
    with pytest.raises(InputError):
        paths("/" + "é" * 40)


@given(st.uuids(), st.uuids(), st.integers(1, 55))
def test_two_instances_never_share_a_path(one: object, other: object, length: int) -> None:
    root = "/" + "k" * length
    first, second = (
        sockets.paths(registry_folder=Path(root), data_folder=Path(root), pod_uid=str(uid))
        for uid in (one, other)
    )

    assert (first == second) == (one == other)
    assert first == second or (first.registration, first.dra) != (second.registration, second.dra)
    assert first.registration != first.dra
    assert not first.registration.name.startswith(".")


def test_longest_path_can_be_bound_and_dialled(short: Path) -> None:
    folder = short / ("k" * (107 - len(f"{short}//{DRIVER}-{POD_UID}-reg.sock")))
    folder.mkdir()
    path = sockets.paths(registry_folder=folder, data_folder=folder, pod_uid=POD_UID).registration

    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        client.connect(str(path))

    assert len(str(path)) == 107


def test_datagram_socket_is_left_alone(short: Path) -> None:
    path = short / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as live:
        live.bind(str(path))

        with pytest.raises(FatalError, match=f"{path}: .*, expected a dead socket"):
            socket_files.remove_stale(path)

        assert path.is_socket()
