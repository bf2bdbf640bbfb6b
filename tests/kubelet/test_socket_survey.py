"""Looking at plugin sockets as the kubelet does."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tensorfusion_dra.core.doctor import sockets as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.kubelet import socket_survey
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.kubelet.server import UnixServer
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tfp-") as made:
        yield Path(made)


def served(path: Path, endpoint: Path) -> UnixServer:
    server = UnixServer(path, [Registration(endpoint=str(endpoint)).service()], workers=2)
    server.start()
    return server


def test_a_socket_is_served_dead_or_gone(folder: Path) -> None:
    dead, live = folder / "dead.sock", folder / "live.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    server = served(live, folder / "dra.sock")

    looked = [socket_survey.look(path, {}).live for path in (live, dead, folder / "none.sock")]

    assert looked == [True, False, None]
    server.stop(grace_seconds=0)


def test_what_the_driver_answers_is_what_the_kubelet_needs(folder: Path) -> None:
    registration, dra = folder / "x-reg.sock", folder / "dra.sock"
    servers = [served(registration, dra), served(dra, dra)]
    with grpc.insecure_channel(f"unix:{dra}") as kubelet:
        grpc.channel_ready_future(kubelet).result(timeout=PATIENCE_SECONDS)

        info = socket_survey.plugin_info(registration, socket_survey.connections())

    assert info.endpoint is not None
    assert info.endpoint.connections == 1
    assert [finding.level for finding in judge.told(info)] == [Level.OK, Level.OK]
    for server in servers:
        server.stop(grace_seconds=0)


def test_a_served_socket_that_nobody_uses_has_no_connections(folder: Path) -> None:
    server = served(folder / "dra.sock", folder / "dra.sock")

    connected = socket_survey.connections()

    assert socket_survey.look(folder / "dra.sock", connected).connections == 0
    server.stop(grace_seconds=0)


def test_an_endpoint_that_is_not_there_is_told(folder: Path) -> None:
    registration = folder / "x-reg.sock"
    server = served(registration, folder / "elsewhere" / "dra.sock")

    info = socket_survey.plugin_info(registration, {})

    assert info.endpoint is None
    assert [finding.level for finding in judge.told(info)] == [Level.OK, Level.PROBLEM]
    server.stop(grace_seconds=0)


def test_a_server_that_says_nothing_is_given_up_as_the_kubelet_does(folder: Path) -> None:
    path = folder / "x-reg.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()

        info = socket_survey.plugin_info(path, {})

    assert info.trouble.startswith("DEADLINE_EXCEEDED")


def test_a_table_of_sockets_that_cannot_be_read_counts_nothing(folder: Path) -> None:
    assert socket_survey.connections(folder / "none") == {}
