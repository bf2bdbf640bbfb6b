"""Sockets that killed instances left are swept; nothing else is."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.kubelet import socket_files, sockets
from tensorfusion_dra.kubelet.server import UnixServer
from tensorfusion_dra.kubelet.sockets import SocketPaths
from tests.support.waiting import PATIENCE_SECONDS


class Node:
    """The two folders of a node."""

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
        return {path.name for path in socket_files.sweep(self.own)}


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="s") as root:
        yield Node(Path(root))


def die(path: Path) -> Path:
    """Leaves the socket of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    return path


@pytest.mark.parametrize("pod_uid", ["", "11111111-0000-4000-8000-000000000000"])
def test_both_sockets_of_a_killed_instance_are_removed(node: Node, pod_uid: str) -> None:
    other = node.paths(pod_uid)
    die(other.registration)
    die(other.dra)

    assert node.swept() == {other.registration.name, other.dra.name}
    assert not other.registration.exists()
    assert not other.dra.exists()


@pytest.mark.parametrize("longer", range(0, 34, 3))
def test_the_short_names_of_long_roots_are_known_as_ours_too(node: Node, longer: int) -> None:
    root = "/" + "k" * (20 + longer)
    other = sockets.paths(
        registry_folder=Path(root) / "plugins_registry",
        data_folder=Path(root) / "d",
        pod_uid="11111111-0000-4000-8000-000000000000",
    )

    assert sockets.is_our_registration(other.registration.name)
    assert sockets.is_our_dra(other.dra.name)


def test_what_a_start_that_was_killed_left_under_a_hidden_name_is_removed(node: Node) -> None:
    other = node.paths("other")
    registration = die(sockets.hidden(other.registration))
    dra = die(sockets.hidden(other.dra))

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
def test_dead_sockets_of_others_stay(node: Node, name: str) -> None:
    path = die(node.own.registration.parent / name)

    assert node.swept() == set()
    assert path.is_socket()


def test_our_own_sockets_stay_whatever_they_are(node: Node) -> None:
    die(node.own.registration)
    die(node.own.dra)

    assert node.swept() == set()


def test_a_live_instance_keeps_its_sockets(node: Node) -> None:
    other = node.paths("other")
    servers = [UnixServer(path, [], workers=1) for path in (other.registration, other.dra)]
    for server in servers:
        server.start()

    swept = node.swept()

    for server in servers:
        assert server.is_reachable
        server.stop(grace_seconds=0)
    assert swept == set()


def test_an_instance_that_is_too_busy_to_accept_keeps_its_sockets(node: Node) -> None:
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


def test_what_only_has_the_name_of_a_socket_stays(node: Node) -> None:
    folder = node.own.dra.parent
    (folder / "dra-file.sock").write_text("precious")
    (folder / "dra-folder.sock").mkdir()
    elsewhere = die(node.root / "elsewhere.sock")
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
    with socket_files.exclusive(node.own.dra.parent), socket.socket(socket.AF_UNIX) as binding:
        binding.bind(str(path))  # and does not listen yet

        with pytest.raises(RetryableError, match=r"sockets\.lock: held by another instance"):
            socket_files.sweep(node.own)

        assert path.is_socket()


def test_an_instance_waits_with_binding_until_another_has_done(node: Node) -> None:
    entered, leave, bound = Event(), Event(), Event()

    def other() -> None:
        with socket_files.exclusive(node.own.dra.parent):
            entered.set()
            leave.wait(PATIENCE_SECONDS)

    def own() -> None:
        with socket_files.exclusive(node.own.dra.parent):
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


def test_the_lock_is_for_the_owner_alone(node: Node) -> None:
    old = os.umask(0)
    with socket_files.exclusive(node.own.dra.parent):
        pass
    os.umask(old)

    assert (node.own.dra.parent / "sockets.lock").stat().st_mode & 0o777 == 0o600


def test_a_socket_is_there_only_while_it_answers(node: Node) -> None:
    path = node.own.dra
    seen_dead = []
    stop = Event()

    def look() -> None:
        while not stop.is_set():
            if path.is_socket() and socket_files.is_dead(path) and path.is_socket():
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
