"""Sockets that a process has to listen on before a claim is prepared."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.enforcer import Needs
from tensorfusion_dra.state import unix_sockets
from tensorfusion_dra.state.claim_files import HostFiles

FILES = HostFiles(Path("/nowhere"))
CONNECTED = pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])


@pytest.fixture
def control() -> Iterator[Path]:
    """Yield a path for a socket in a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made) / "control"


@contextmanager
def listening(path: Path, kind: socket.SocketKind, *, queue: int = 8) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(path))
        server.listen(queue)
        yield server


@CONNECTED
def test_only_a_listening_process_is_enough_and_gets_no_byte(
    control: Path, kind: socket.SocketKind
) -> None:
    needs = Needs(sockets=(str(control),))
    with listening(control, kind) as server:
        assert FILES.missing(needs) == ""

        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""

    assert control.is_socket()
    assert FILES.missing(needs).startswith(f"{control}: found a socket of an ended process")


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo])
def test_other_kinds_of_files_are_no_sockets(control: Path, make: Callable[[Path], None]) -> None:
    make(control)

    assert "found no socket, expected one" in unix_sockets.reason(str(control))


@CONNECTED
def test_hung_process_with_a_full_queue_is_refused_without_waiting(
    control: Path, kind: socket.SocketKind
) -> None:
    with listening(control, kind, queue=0), socket.socket(socket.AF_UNIX, kind) as waiting:
        waiting.connect(str(control))
        reason = unix_sockets.reason(str(control))

    assert "found a process that accepts no connections" in reason


def test_datagram_socket_accepts_no_connections(control: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(control))

        assert "found a datagram socket" in unix_sockets.reason(str(control))


def test_path_beyond_the_kernels_limit_is_an_error(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 120)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{folder}/s")
        finally:
            os.close(folder)
    (tmp_path / "s").rename(long)

    assert unix_sockets.reason(str(long)) == "AF_UNIX path too long"
