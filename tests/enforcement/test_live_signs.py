"""Live signs of enforcers on a node, and what they mean for the next claim."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from tensorfusion_dra.core.claims import presence
from tensorfusion_dra.core.claims.evidence import NodePlaces, Places
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.enforcement.live_signs import LiveSigns
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)

NOW: Final = 1_700_000_000.0
FRESH: Final = enforcer_files.shared_memory({"0": limit(25, 20)}, heartbeat=int(NOW))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A short path for sockets, with the limiter in it."""
    (tmp_path / "libcuda_limiter.so").write_bytes(b"\x7fELF...")
    return tmp_path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        yield server


def soft(folder: Path) -> NodePlaces:
    return NodePlaces(
        enforcer="tensor-fusion",
        files=(str(folder / "libcuda_limiter.so"),),
        sockets=str(folder / "tensor-fusion-index-*.sock"),
    )


def found(places: NodePlaces) -> tuple[str, str, str]:
    verdict = presence.of_node(places.enforcer, LiveSigns(places, now=lambda: NOW).of_node())
    return verdict.state.value, verdict.reason, verdict.text


def test_hypervisor_without_the_limiter_is_not_enough(node: Path, listener: socket.socket) -> None:
    listener.bind(str(node / "tensor-fusion-index-0.sock"))
    listener.listen()
    (node / "libcuda_limiter.so").unlink()

    assert found(soft(node))[:2] == ("NotEnforced", "LimiterMissing")


def test_file_that_is_no_library_is_no_limiter(node: Path) -> None:
    (node / "libcuda_limiter.so").write_text("not found")

    assert found(soft(node))[2].endswith("found no shared library")


@pytest.mark.parametrize("ahead_seconds", [0, 1, 10**9])
def test_heartbeat_that_a_container_can_write_is_no_live_hypervisor(
    node: Path, ahead_seconds: int
) -> None:
    heartbeat = enforcer_files.shared_memory({}, heartbeat=int(NOW) + ahead_seconds)
    enforcer_files.write_shared_memory(node / "shm" / "ns" / "pod" / "shm", heartbeat)

    assert found(soft(node))[:2] == ("NotEnforced", "HypervisorMissing")


def test_device_plugin_that_accepts_is_a_live_hypervisor(
    node: Path, listener: socket.socket
) -> None:
    path = node / "tensor-fusion-index-3.sock"
    listener.bind(str(path))
    assert "ended process" in found(soft(node))[2]

    listener.listen()
    assert found(soft(node))[0] == "Enforced"


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "Enforced"),
        (b"HTTP/1.1 503 No\r\n\r\n", "NotEnforced"),
        (b"", "NotEnforced"),
    ],
)
def test_healthz_of_the_hypervisor_is_asked_last(node: Path, answer: bytes, state: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(1024)
                client.sendall(answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        places = replace(soft(node), http=("127.0.0.1", server.getsockname()[1]))

        assert found(places)[0] == state
        thread.join()


def test_mps_daemon_has_to_accept(tmp_path: Path, listener: socket.socket) -> None:
    places = NodePlaces(enforcer="mps", socket=str(tmp_path / "control"))
    assert found(places)[2].startswith(f"no MPS daemon answers at {tmp_path}/control: No such file")

    listener.bind(str(tmp_path / "control"))
    assert found(places)[:2] == ("NotEnforced", "DaemonSilent")

    listener.listen()
    assert found(places)[:2] == ("Enforced", "EnforcerAlive")


def test_installed_library_of_hami_core_shows_nothing(node: Path) -> None:
    places = NodePlaces(enforcer="hami-core", files=(str(node / "libcuda_limiter.so"),))

    assert found(places)[:2] == ("Unknown", "LibraryInstalled")


def test_signs_of_a_claim_are_read_at_its_places(node: Path) -> None:
    enforcer_files.write_shared_memory(node / "shm", FRESH)
    (node / "gpu.cache").write_bytes(enforcer_files.hami_cache([limit(25, 20)]))

    signs = LiveSigns(soft(node), now=lambda: NOW).of_claim(
        Places(
            files=(str(node / "libcuda_limiter.so"), str(node / "missing")),
            shared_memory=str(node / "shm"),
            caches={"gpu": str(node / "gpu.cache")},
            socket=str(node / "control"),
        )
    )

    assert [file.trouble for file in signs.files] == ["", "not found"]
    assert signs.shared_memory is not None
    assert signs.shared_memory.heartbeat == NOW
    assert signs.caches["gpu"].processes == 1
    assert signs.daemon is not None
    assert signs.daemon.trouble == "No such file or directory"


def test_places_of_a_simulated_claim_are_not_read() -> None:
    signs = LiveSigns(NodePlaces(enforcer="mps"), now=lambda: NOW).of_claim(Places())

    assert (signs.files, signs.shared_memory, signs.caches, signs.daemon) == ((), None, {}, None)


def test_only_claims_that_something_on_the_node_enforces_are_refused(node: Path) -> None:
    signs = LiveSigns(soft(node), now=lambda: NOW).of_node()
    shares = {
        "soft": prepared_share(0, limit(25, 20)),
        "hard": prepared_share(0, limit(25, 20), isolation=Isolation.HARD),
        "shared": prepared_share(0, isolation=Isolation.SHARED),
        "simulated": simulated_share(0, limit(25, 20)),
        "admin": admin_share(),
    }

    refused = [
        name
        for name, share in shares.items()
        if presence.refusal(prepared_claim(share, enforcer="tensor-fusion"), signs)
    ]

    assert refused == ["soft"]
