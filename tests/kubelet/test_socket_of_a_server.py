"""The socket file of a server: its mode, and what else may lie at its path."""

import os
import socket
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.kubelet.server import UnixServer


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
