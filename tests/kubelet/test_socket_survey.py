"""Survey of plugin sockets, with the kubelet's calls."""

import socket
from pathlib import Path

import grpc

from tensorfusion_dra.core.doctor import sockets as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.kubelet import socket_survey
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.kubelet.server import UnixServer
from tests.support.waiting import PATIENCE_SECONDS


def served(path: Path, endpoint: Path) -> UnixServer:
    server = UnixServer(path, [Registration(endpoint=str(endpoint)).service()], workers=2)
    server.start()
    return server


def test_socket_is_live_dead_or_unknown(folder: Path) -> None:
    dead, live = folder / "dead.sock", folder / "live.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    server = served(live, folder / "dra.sock")

    found = [
        socket_survey.inspect_socket(path, {}).live for path in (live, dead, folder / "none.sock")
    ]

    assert found == [True, False, None]
    server.stop(grace_seconds=0)


def test_drivers_plugin_info_satisfies_the_kubelet(folder: Path) -> None:
    registration, dra = folder / "x-reg.sock", folder / "dra.sock"
    servers = [served(registration, dra), served(dra, dra)]
    with grpc.insecure_channel(f"unix:{dra}") as kubelet:
        grpc.channel_ready_future(kubelet).result(timeout=PATIENCE_SECONDS)

        info = socket_survey.plugin_info(registration, socket_survey.connections())

    assert info.endpoint is not None
    assert info.endpoint.connections == 1
    assert [finding.level for finding in judge.plugin_info(info)] == [Level.OK, Level.OK]
    for server in servers:
        server.stop(grace_seconds=0)


def test_unused_served_socket_has_no_connections(folder: Path) -> None:
    server = served(folder / "dra.sock", folder / "dra.sock")

    connected = socket_survey.connections()

    assert socket_survey.inspect_socket(folder / "dra.sock", connected).connections == 0
    server.stop(grace_seconds=0)


def test_missing_endpoint_is_a_problem(folder: Path) -> None:
    registration = folder / "x-reg.sock"
    server = served(registration, folder / "elsewhere" / "dra.sock")

    info = socket_survey.plugin_info(registration, {})

    assert info.endpoint is None
    assert [finding.level for finding in judge.plugin_info(info)] == [Level.OK, Level.PROBLEM]
    server.stop(grace_seconds=0)


def test_silent_server_times_out(folder: Path) -> None:
    path = folder / "x-reg.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()

        info = socket_survey.plugin_info(path, {})

    assert info.trouble.startswith("DEADLINE_EXCEEDED")


def test_unreadable_socket_table_has_no_connections(folder: Path) -> None:
    assert socket_survey.connections(folder / "none") == {}
