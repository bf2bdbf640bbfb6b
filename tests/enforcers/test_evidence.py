"""Evidence of enforcers on a node, in files that containers can write, and what follows."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import enforcer as enforcers
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.enforcers import hami_core
from tensorfusion_dra.enforcers.hami_core import Cache, HamiCore
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.enforcers.tensor_fusion import shared_memory
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import SharedMemory, WorkerMemory
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import (
    POD,
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)

NOW: Final = 1_700_000_000.0


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A short path for sockets, with the limiter in it."""
    (tmp_path / "libcuda_limiter.so").write_bytes(b"\x7fELF...")
    return tmp_path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        yield server


def soft(folder: Path, **address: Any) -> TensorFusion:
    return TensorFusion(root=str(folder), device_plugins=str(folder), **address)


def found(enforcer: Enforcer) -> tuple[str, str, str]:
    verdict = enforcer.sign().verdict
    return verdict.state.value, verdict.reason, verdict.text


@pytest.mark.parametrize("spoil", [Path.unlink, lambda library: library.write_text("no ELF")])
def test_hypervisor_without_the_limiter_is_not_enough(
    node: Path, listener: socket.socket, spoil: Callable[[Path], object]
) -> None:
    listener.bind(str(node / "tensor-fusion-index-0.sock"))
    listener.listen()
    spoil(node / "libcuda_limiter.so")

    assert found(soft(node))[:2] == ("NotEnforced", "LimiterMissing")


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
        address = {"hypervisor_ip": "127.0.0.1", "hypervisor_port": server.getsockname()[1]}

        assert found(soft(node, **address))[0] == state
        thread.join()


def test_mps_daemon_has_to_accept(tmp_path: Path, listener: socket.socket) -> None:
    mps = Mps(pipes=str(tmp_path))
    assert found(mps)[2].startswith(f"no MPS daemon answers at {tmp_path}/control: No such file")

    listener.bind(str(tmp_path / "control"))
    assert found(mps)[:2] == ("NotEnforced", "DaemonSilent")

    listener.listen()
    assert found(mps)[:2] == ("Enforced", "EnforcerAlive")


def test_installed_library_of_hami_core_shows_nothing(node: Path) -> None:
    hami = HamiCore(library=str(node / "libcuda_limiter.so"))

    assert found(hami)[:2] == ("Unknown", "LibraryInstalled")


def test_only_claims_that_something_on_the_node_enforces_need_evidence() -> None:
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
        if enforcers.needs_evidence(prepared_claim(share), TensorFusion())
    ]

    assert refused == ["soft"]


CLAIM: Final = prepared_claim(prepared_share(0, limit(25, 20)), enforcer="tensor-fusion")
GPU: Final = CLAIM.shares[0].gpu_uuid


def test_memory_in_another_folder_than_the_registered_one_never_enforces(tmp_path: Path) -> None:
    memory = WorkerMemory(tmp_path / "shm")
    enforcer = TensorFusion(root=str(tmp_path))
    file = Path(enforcer.needs(CLAIM).folders[0].path) / "shm"
    content = enforcer_files.shared_memory(
        {GPU: limit(25, 20)}, heartbeat=int(time.time()), processes=1
    )
    enforcer_files.write_shared_memory(file, content)
    memory.record_registered(POD)

    def reason() -> str:
        (found,) = enforcers.judged(CLAIM, enforcer, (), is_new=False)
        return found.reason

    assert reason() == "LimiterActive"
    assert memory.is_kept(POD, (GPU.lower(),))

    memory.record_reason(POD, "tensor-fusion.ai/tflops-limit: found 312")
    assert reason() == "LimitsDiffer"
    memory.record_reason(POD, "")
    assert reason() == "LimiterActive"

    file.parent.rename(file.parent.with_name("mounted"))
    assert reason() == "SharedMemoryReplaced"

    enforcer_files.write_shared_memory(file, content)
    assert reason() == "SharedMemoryReplaced"
    assert not memory.is_kept(POD, (GPU.lower(),))


LIMITS: Final = (limit(25, 20), limit(50, 40))
BY_GPU: Final = dict(zip(("ABCD-01", "GPU-abcd-02"), LIMITS, strict=True))
Read = Callable[[str], Cache | SharedMemory]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_limits_and_processes_of_hami_core_are_read(path: Path) -> None:
    path.write_bytes(enforcer_files.hami_cache(LIMITS, processes=2))

    found = hami_core.read(str(path))

    assert (found.limits[:2], found.processes, found.reason) == (LIMITS, 2, "")
    assert found.limits[2:] == (limit(0, 0),) * 14


def test_limits_heartbeat_and_processes_of_the_hypervisor_are_read(path: Path) -> None:
    path.write_bytes(enforcer_files.shared_memory(BY_GPU, heartbeat=1_700_000_000, processes=3))

    assert shared_memory.read(str(path)) == SharedMemory(
        path=str(path), heartbeat=1_700_000_000, limits=BY_GPU, processes=3
    )


def test_bytes_that_are_no_text_are_no_error(path: Path) -> None:
    content = bytearray(enforcer_files.shared_memory(BY_GPU, heartbeat=1, processes=2**40))
    content[8:12] = b"\xff\xfe\xff\xfe"
    path.write_bytes(content)

    found = shared_memory.read(str(path))

    assert (len(found.limits), found.processes, found.reason) == (2, 2048, "")


@pytest.mark.parametrize(
    ("read", "content", "reason"),
    [
        # A file that no process of HAMi-core has initialized yet has no limits.
        (hami_core.read, b"", ""),
        (hami_core.read, bytes(2_008_953), ""),
        (hami_core.read, enforcer_files.hami_cache(LIMITS, flag=0), ""),
        (
            hami_core.read,
            enforcer_files.hami_cache(LIMITS, version=(1, 1)),
            "found version 1.1, expected 1.2",
        ),
        (shared_memory.read, b"", "found 0 bytes, expected 35504"),
        (shared_memory.read, bytes(35_496), "found 35496 bytes, expected 35504"),
        (
            shared_memory.read,
            enforcer_files.shared_memory(BY_GPU, heartbeat=1, discriminant=0),
            "found version 1, expected 2",
        ),
    ],
)
def test_file_of_another_layout_has_no_limits(
    path: Path, read: Read, content: bytes, reason: str
) -> None:
    path.write_bytes(content)

    found = read(str(path))

    assert (tuple(found.limits), found.processes, found.reason) == ((), 0, reason)


@pytest.mark.parametrize("read", [hami_core.read, shared_memory.read])
def test_links_and_pipes_of_a_tenant_are_not_followed(path: Path, read: Read) -> None:
    missing = read(str(path))
    assert (tuple(missing.limits), missing.reason) == ((), "")

    real = path.with_name("real")
    real.write_bytes(
        enforcer_files.hami_cache(LIMITS)
        if read is hami_core.read
        else enforcer_files.shared_memory(BY_GPU, heartbeat=1)
    )
    path.symlink_to(real)
    assert (tuple(read(str(path)).limits), bool(read(str(path)).reason)) == ((), True)

    path.unlink()
    os.mkfifo(path)
    assert read(str(path)).reason == "found something else, expected a regular file"
