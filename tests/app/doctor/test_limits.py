"""Checks of the enforcer: its files, its life, and the limits of prepared claims."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tensorfusion_dra.app.doctor import limits
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.doctor.finding import Level
from tests.app.doctor.here import context, put_prepared_claim
from tests.support import enforcer_files, findings
from tests.support.builders.prepared_claims import limit
from tests.support.prepared_node import GPU_0


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a path that leaves room for the name of a socket."""
    with TemporaryDirectory(prefix="tf-") as made:
        yield Path(made)


def put_limiter(folder: Path) -> Path:
    file = folder / "tensor-fusion" / "libcuda_limiter.so"
    file.parent.mkdir()
    file.write_bytes(b"\x7fELF")
    return file


def test_the_limiters_library_is_required_only_for_real_cards(folder: Path) -> None:
    here = context(folder, simulated_gpus="")

    (missing,) = limits.files(here)
    limiter_file = put_limiter(folder)
    limiter_file.chmod(0o644)
    (there,) = limits.files(here)
    limiter_file.chmod(0o700)
    (unloadable,) = limits.files(here)
    limiter_file.unlink()
    limiter_file.parent.rmdir()
    limiter_file.parent.touch()
    (unreadable,) = limits.files(here)
    (simulated,) = limits.files(context(folder))

    assert [each.level for each in (missing, there, unloadable, unreadable, simulated)] == [
        *(Level.PROBLEM, Level.NOTE, Level.WARNING, Level.COULD_NOT_LOOK, Level.OK),
    ]
    assert str(limiter_file) in missing.subject


def test_enforcer_without_files_is_only_noted(folder: Path) -> None:
    (finding,) = limits.files(context(folder, simulated_gpus="", isolation="shared"))

    assert finding.level is Level.NOTE


def test_socket_file_without_a_listening_daemon_is_a_problem(folder: Path) -> None:
    here = context(
        folder, simulated_gpus="", enforcer="mps", mps_pipes=str(folder), mps_shm=str(folder)
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(folder / "control"))
        daemon.listen()
        running = [finding.level for finding in (*limits.files(here), *limits.alive(here))]
    dead = [*limits.files(here), *limits.alive(here)]

    assert running == [Level.NOTE, Level.OK, Level.OK]
    assert [finding.level for finding in dead] == [Level.NOTE, Level.PROBLEM, Level.PROBLEM]
    assert "ended process" in dead[1].found


def test_enforcer_is_ok_only_while_it_is_alive(folder: Path) -> None:
    """A limiter without a hypervisor, then with a live one, then with a dead one."""
    put_limiter(folder)
    plugin = folder / "tensor-fusion-index-0.sock"
    here = context(folder, simulated_gpus="", hypervisor_sockets=str(plugin.parent))

    (without,) = limits.alive(here)
    with socket.socket(socket.AF_UNIX) as hypervisor:
        hypervisor.bind(str(plugin))
        hypervisor.listen()
        (alive,) = limits.alive(here)
    (dead,) = limits.alive(here)
    (required,) = limits.alive(context(folder, simulated_gpus="", require_enforcement="true"))

    assert [without.level, alive.level, dead.level, required.level] == [
        *(Level.WARNING, Level.OK, Level.WARNING, Level.PROBLEM),
    ]
    assert alive.found == f"device plugin {plugin} answers"
    assert "ended process" in dead.found


def test_address_at_which_a_pod_could_answer_is_not_asked_where_sockets_are(folder: Path) -> None:
    put_limiter(folder)
    address: dict[str, Any] = {"hypervisor_ip": "127.0.0.1", "hypervisor_port": 1}

    (without,) = limits.alive(context(folder, simulated_gpus="", **address))
    (bridge,) = limits.alive(
        context(folder, simulated_gpus="", hypervisor_sockets=str(folder), **address)
    )

    assert "http://127.0.0.1:1/healthz" in without.found
    assert "http" not in bridge.found


def test_containers_have_to_be_told_where_the_hypervisor_is(folder: Path) -> None:
    (unset,) = limits.address(context(folder, simulated_gpus=""))

    assert (unset.level, "ends every process" in unset.found) == (Level.WARNING, True)
    assert list(limits.address(context(folder))) == []
    addressed = context(folder, simulated_gpus="", hypervisor_ip="10.0.0.1")
    assert list(limits.address(addressed)) == []
    assert list(limits.address(context(folder, simulated_gpus="", enforcer="mps"))) == []


def test_limits_of_prepared_claims_are_judged(folder: Path) -> None:
    put_prepared_claim(folder, has_real_cards=True)
    here = context(folder, simulated_gpus="")

    findings.check(limits.claims(here), [(Level.WARNING, "SharedMemoryMissing")])
    for shared, expected in (
        (limit(100, 80), (Level.WARNING, "LimitsDiffer")),
        (limit(33, 16), (Level.OK, "shares that are Enforced: 1")),
    ):
        content = enforcer_files.shared_memory(
            {GPU_0: shared}, heartbeat=int(time.time()) + 1, processes=1
        )
        shm = folder / "tensor-fusion" / "shm" / "default" / "a" / "shm"
        enforcer_files.write_shared_memory(shm, content)
        findings.check(limits.claims(here), [expected])


@pytest.mark.parametrize(
    ("found", "is_required", "level"),
    [
        (verdicts.enforced("EnforcerAlive", "fresh heartbeat"), False, Level.OK),
        (verdicts.unknown("LibraryInstalled", "the library is there"), True, Level.NOTE),
        (verdicts.not_enforced("HypervisorMissing", "no sign"), False, Level.WARNING),
        (verdicts.not_enforced("HypervisorMissing", "no sign"), True, Level.PROBLEM),
    ],
)
def test_dead_enforcer_is_a_problem_if_it_is_required(
    found: Verdict, is_required: bool, level: Level
) -> None:
    finding = limits.life("tensor-fusion", found, is_required=is_required)

    assert finding.level is level
    assert found.text in finding.found
