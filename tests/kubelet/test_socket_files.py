"""Socket files: paths that fit, modes, and removal of those that dead instances left."""

import base64
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import FatalError, InputError, RetryableError
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.plugin_servers import UnixServer
from tensorfusion_dra.kubelet.sockets import SocketPaths
from tests.support.threads import running

POD_UID: Final = "8f3a1b2c-0000-4000-8000-00000000abcd"


class Node:
    """The two folders of a node that contain sockets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = self.paths("own")
        self.registry, self.data = self.own.registration.parent, self.own.dra.parent
        for folder in (self.registry, self.data):
            folder.mkdir()

    def paths(self, pod_uid: str) -> SocketPaths:
        return sockets.paths(
            registry_folder=self.root / "r", data_folder=self.root / "d", pod_uid=pod_uid
        )


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


def test_dead_sockets_of_other_instances_are_removed(node: Node) -> None:
    unnamed, other = node.paths(""), node.paths(POD_UID)
    theirs = (unnamed.registration, unnamed.dra, other.registration, other.dra)
    dead = {leave_dead_socket(each) for path in theirs for each in (path, sockets.hidden(path))}
    own = {leave_dead_socket(path) for path in (node.own.registration, node.own.dra)}

    assert set(sockets.sweep(node.own)) == dead
    assert {path for path in node.root.rglob("*") if path.is_socket()} == own


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
    path = leave_dead_socket(node.registry / name)

    assert sockets.sweep(node.own) == ()
    assert path.is_socket()


def test_live_sockets_and_files_that_only_have_a_socket_name_stay(node: Node) -> None:
    (node.data / "dra-file.sock").write_text("precious")
    (node.data / "dra-folder.sock").mkdir()
    (node.data / "dra-link.sock").symlink_to(leave_dead_socket(node.root / "elsewhere.sock"))
    busy = str(node.data / "dra-busy.sock")
    with ExitStack() as stack:
        listener, *clients = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4))
        listener.bind(busy)
        listener.listen(0)
        for client in clients:
            client.settimeout(0)
            client.connect_ex(busy)
        datagram = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagram.bind(str(node.data / "dra-datagram.sock"))
        live = UnixServer(node.paths("live").dra, [], workers=1)
        live.start()
        stack.callback(live.stop, grace_seconds=0)
        before = {*node.root.rglob("*")}

        assert sockets.sweep(node.own) == ()
        assert live.is_reachable

    assert before - {*node.root.rglob("*")} == {node.paths("live").dra}


def test_nothing_is_swept_or_bound_while_another_instance_binds(node: Node) -> None:
    path = node.paths("other").dra
    bound = Event()

    def bind() -> None:
        with sockets.exclusive(node.data):
            bound.set()

    with ThreadPoolExecutor() as pool:
        with sockets.exclusive(node.data), socket.socket(socket.AF_UNIX) as binding:
            binding.bind(str(path))  # and does not listen yet
            waiting = pool.submit(bind)
            with pytest.raises(RetryableError, match=r"sockets\.lock: held by another instance"):
                sockets.sweep(node.own)
            assert (path.is_socket(), bound.wait(0.2)) == (True, False)
        waiting.result()
    assert bound.is_set()


def test_socket_exists_only_while_it_answers(node: Node) -> None:
    path = node.own.dra
    seen_dead = []
    stop = Event()

    def look() -> None:
        while not stop.is_set():
            if path.is_socket() and sockets.is_dead(path) and path.is_socket():
                seen_dead.append(path)

    with running(look, stop=stop.set):
        for _ in range(20):
            server = UnixServer(path, [], workers=1)
            server.start()
            server.stop(grace_seconds=0)

    assert (seen_dead, [*path.parent.iterdir()]) == ([], [])


def test_sockets_locks_and_new_folders_are_accessible_to_the_owner_only(node: Node) -> None:
    path = node.root / "plugins" / "dra.sock"
    server = UnixServer(path, [], workers=1)
    old = os.umask(0)
    server.start()
    with sockets.exclusive(path.parent):
        os.umask(old)

    files = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    server.stop(grace_seconds=0)
    assert (path.parent.stat().st_mode & 0o777, files) == (
        0o700,
        {"dra.sock": 0o600, sockets.LOCK_FILE: 0o600},
    )


def test_dead_socket_is_replaced_but_served_one_is_not(node: Node) -> None:
    path = leave_dead_socket(node.own.dra)
    server = UnixServer(path, [], workers=1)
    server.start()

    with pytest.raises(FatalError, match="another process serves this socket"):
        UnixServer(path, [], workers=1).start()

    assert server.is_reachable
    server.stop(grace_seconds=0)


def test_file_or_datagram_socket_at_the_socket_path_is_left_alone(node: Node) -> None:
    file, datagram = node.data / "file.sock", node.data / "datagram.sock"
    file.write_text("precious")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as live:
        live.bind(str(datagram))
        for path, error in (
            (file, "found a file that is no socket"),
            (datagram, "another process serves this socket"),
        ):
            with pytest.raises(FatalError, match=f"{path}: {error}"):
                UnixServer(path, [], workers=1).start()

    assert (file.read_text(), datagram.is_socket()) == ("precious", True)


def digest(text: str) -> str:
    return (
        base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:8]).rstrip(b"=").decode()
    )


FIRST: Final = f"{names.DRIVER}-{POD_UID}-reg.sock"
HASHED: Final = f"{names.DRIVER}-{digest(POD_UID)}-reg.sock"
SHORTEST: Final = f"dra-{digest(names.DRIVER)}{digest(POD_UID)}-reg.sock"


@pytest.mark.parametrize(
    ("root", "pod_uid", "registration", "dra"),
    [
        ("/var/lib/kubelet", "", f"{names.DRIVER}-reg.sock", "dra.sock"),
        ("/var/lib/kubelet", POD_UID, FIRST, f"dra-{POD_UID}.sock"),
        ("/var/lib/kubelets", POD_UID, HASHED, f"dra-{POD_UID}.sock"),
        ("/var/lib/" + "k" * 32, POD_UID, HASHED, f"dra-{digest(POD_UID)}.sock"),
        ("/var/lib/" + "k" * 33, POD_UID, SHORTEST, f"dra-{digest(POD_UID)}.sock"),
    ],
)
def test_longer_root_gets_shorter_names_that_are_recognised_as_ours(
    root: str, pod_uid: str, registration: str, dra: str
) -> None:
    registry, data = Path(root, "plugins_registry"), Path(root, "plugins", names.DRIVER)

    found = sockets.paths(registry_folder=registry, data_folder=data, pod_uid=pod_uid)

    assert found == SocketPaths(registration=registry / registration, dra=data / dra)
    assert max(len(str(found.registration)), len(str(found.dra))) <= 107
    assert sockets.OUR_REGISTRATION.fullmatch(registration)
    assert sockets.OUR_DRA.fullmatch(dra)


@pytest.mark.parametrize("pod_uid", ["", POD_UID])
@pytest.mark.parametrize("root", ["k" * 200, "é" * 45], ids=["characters", "bytes"])
def test_root_too_long_for_every_name_is_an_error_with_its_length(root: str, pod_uid: str) -> None:
    folder = Path("/", root)

    with pytest.raises(InputError, match=r"socket /.*: [0-9]+ bytes, expected at most 107"):
        sockets.paths(registry_folder=folder, data_folder=folder, pod_uid=pod_uid)


@given(st.uuids(), st.uuids(), st.integers(1, 55))
def test_two_instances_never_share_a_path(one: object, other: object, length: int) -> None:
    root = Path("/" + "k" * length)
    first, second = (
        sockets.paths(registry_folder=root, data_folder=root, pod_uid=str(uid))
        for uid in (one, other)
    )

    assert (first == second) == (one == other)
    assert first == second or (first.registration, first.dra) != (second.registration, second.dra)
    assert first.registration != first.dra
    assert not first.registration.name.startswith(".")
