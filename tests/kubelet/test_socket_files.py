"""Socket files: paths that fit, modes, and removal of those that dead instances left."""

import base64
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import FatalError, InputError, RetryableError
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.server import UnixServer
from tensorfusion_dra.kubelet.sockets import SocketPaths
from tests.support.waiting import PATIENCE_SECONDS


class Node:
    """The two folders of a node that contain sockets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = self.paths("own")
        for folder in (self.own.registration.parent, self.own.dra.parent):
            folder.mkdir(parents=True)

    def paths(self, pod_uid: str) -> SocketPaths:
        return sockets.paths(
            registry_folder=self.root / "plugins_registry",
            data_folder=self.root / "d",
            pod_uid=pod_uid,
        )

    def swept(self) -> set[str]:
        return {path.name for path in sockets.sweep(self.own)}


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="s") as root:
        yield Node(Path(root))


def leave_dead_socket(path: Path) -> Path:
    """Create a socket at this path as a killed process leaves it."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    return path


@pytest.mark.parametrize("pod_uid", ["", "11111111-0000-4000-8000-000000000000"])
def test_both_sockets_of_a_killed_instance_are_removed(node: Node, pod_uid: str) -> None:
    other = node.paths(pod_uid)
    leave_dead_socket(other.registration)
    leave_dead_socket(other.dra)

    assert node.swept() == {other.registration.name, other.dra.name}
    assert not other.registration.exists()
    assert not other.dra.exists()


@pytest.mark.parametrize("longer", range(0, 34, 3))
def test_short_names_for_long_roots_are_recognised_as_ours(node: Node, longer: int) -> None:
    root = "/" + "k" * (20 + longer)
    other = sockets.paths(
        registry_folder=Path(root) / "plugins_registry",
        data_folder=Path(root) / "d",
        pod_uid="11111111-0000-4000-8000-000000000000",
    )

    assert sockets.is_our_registration(other.registration.name)
    assert sockets.is_our_dra(other.dra.name)


def test_hidden_sockets_of_a_killed_start_are_removed(node: Node) -> None:
    other = node.paths("other")
    registration = leave_dead_socket(sockets.hidden(other.registration))
    dra = leave_dead_socket(sockets.hidden(other.dra))

    assert node.swept() == {registration.name, dra.name}


@pytest.mark.parametrize(
    "name",
    [
        "another.driver-reg.sock",
        f"another-{names.DRIVER}-reg.sock",
        f"{names.DRIVER}.example-1111-reg.sock",
        f"{names.DRIVER}2-1111-reg.sock",
        "dra-lIpCBs5sIvAUNSF6d4IrbQ-reg.sock",  # the shortest name of a driver with Go's helper
        f"{names.DRIVER}-1111.sock",
        ".hidden",
        ".abcdef",
    ],
)
def test_dead_sockets_of_other_drivers_stay(node: Node, name: str) -> None:
    path = leave_dead_socket(node.own.registration.parent / name)

    assert node.swept() == set()
    assert path.is_socket()


def test_own_sockets_stay_even_if_dead(node: Node) -> None:
    leave_dead_socket(node.own.registration)
    leave_dead_socket(node.own.dra)

    assert node.swept() == set()


def test_sockets_of_a_live_instance_stay(node: Node) -> None:
    other = node.paths("other")
    servers = [UnixServer(path, [], workers=1) for path in (other.registration, other.dra)]
    for server in servers:
        server.start()

    swept = node.swept()

    for server in servers:
        assert server.is_reachable
        server.stop(grace_seconds=0)
    assert swept == set()


def test_sockets_of_a_busy_instance_stay(node: Node) -> None:
    path = node.paths("other").dra
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen(0)
        waiting = []
        for _ in range(3):
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(0)
            client.connect_ex(str(path))
            waiting.append(client)

        assert node.swept() == set()

        for client in waiting:
            client.close()
    assert path.is_socket()


def test_files_that_only_have_a_socket_name_stay(node: Node) -> None:
    folder = node.own.dra.parent
    (folder / "dra-file.sock").write_text("precious")
    (folder / "dra-folder.sock").mkdir()
    elsewhere = leave_dead_socket(node.root / "elsewhere.sock")
    (folder / "dra-link.sock").symlink_to(elsewhere)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other_kind:
        other_kind.bind(str(folder / "dra-datagram.sock"))

        assert node.swept() == set()

    assert {path.name for path in folder.glob("dra-*")} == {
        "dra-file.sock",
        "dra-folder.sock",
        "dra-link.sock",
        "dra-datagram.sock",
    }
    assert elsewhere.is_socket()


def test_nothing_is_swept_while_another_instance_binds(node: Node) -> None:
    path = node.paths("other").dra
    with sockets.exclusive(node.own.dra.parent), socket.socket(socket.AF_UNIX) as binding:
        binding.bind(str(path))  # and does not listen yet

        with pytest.raises(RetryableError, match=r"sockets\.lock: held by another instance"):
            sockets.sweep(node.own)

        assert path.is_socket()


def test_instance_waits_to_bind_until_another_is_done(node: Node) -> None:
    entered, leave, bound = Event(), Event(), Event()

    def other() -> None:
        with sockets.exclusive(node.own.dra.parent):
            entered.set()
            leave.wait(PATIENCE_SECONDS)

    def own() -> None:
        with sockets.exclusive(node.own.dra.parent):
            bound.set()

    threads = [Thread(target=other), Thread(target=own)]
    threads[0].start()
    assert entered.wait(PATIENCE_SECONDS)
    threads[1].start()
    assert not bound.wait(0.2)
    leave.set()

    assert bound.wait(PATIENCE_SECONDS)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)


def test_lock_file_is_accessible_to_its_owner_only(node: Node) -> None:
    old = os.umask(0)
    with sockets.exclusive(node.own.dra.parent):
        pass
    os.umask(old)

    assert (node.own.dra.parent / "sockets.lock").stat().st_mode & 0o777 == 0o600


def test_socket_exists_only_while_it_answers(node: Node) -> None:
    path = node.own.dra
    seen_dead = []
    stop = Event()

    def look() -> None:
        while not stop.is_set():
            if path.is_socket() and sockets.is_dead(path) and path.is_socket():
                seen_dead.append(path)

    looking = Thread(target=look)
    looking.start()
    for _ in range(20):
        server = UnixServer(path, [], workers=1)
        server.start()
        server.stop(grace_seconds=0)
    stop.set()
    looking.join(PATIENCE_SECONDS)

    assert not list(path.parent.glob(".*"))
    assert seen_dead == []


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


def test_datagram_socket_is_left_alone(short: Path) -> None:
    path = short / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as live:
        live.bind(str(path))

        with pytest.raises(FatalError, match=f"{path}: .*, expected a dead socket"):
            sockets.remove_stale(path)

        assert path.is_socket()


def test_sockets_and_their_new_folders_are_accessible_to_the_owner_only(folder: Path) -> None:
    path = folder / "plugins" / "driver" / "dra.sock"
    old = os.umask(0)
    server = UnixServer(path, [], workers=1)
    server.start()
    os.umask(old)

    modes = (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777)

    server.stop(grace_seconds=0)
    assert modes == (0o600, 0o700)


def test_dead_socket_is_replaced_but_served_one_is_not(folder: Path) -> None:
    dead = folder / "dead.sock"
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(dead))
    replaced = UnixServer(dead, [], workers=1)
    replaced.start()

    with pytest.raises(FatalError, match="another process serves this socket"):
        UnixServer(dead, [], workers=1).start()

    assert dead.is_socket()
    replaced.stop(grace_seconds=0)


def test_regular_file_at_the_socket_path_is_left_alone(folder: Path) -> None:
    path = folder / "dra.sock"
    path.write_text("precious")

    with pytest.raises(FatalError, match="found a file that is no socket"):
        UnixServer(path, [], workers=1).start()

    assert path.read_text() == "precious"
