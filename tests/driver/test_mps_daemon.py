"""A claim with enforcer mps is prepared only while the MPS control daemon listens."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.enforcers.enforcer import Needs
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state.host_files import HostFiles
from tests.support.ports import HostFilesInMemory
from tests.support.prepared_node import Setup, error_of, put_claim, share_result, use_real_cards


class HostFilesOnDisk(HostFilesInMemory):
    """Checks files and sockets as on a node."""

    def missing(self, needs: Needs) -> str:
        return HostFiles.missing(self, needs)


@pytest.fixture
def pipes() -> Iterator[Path]:
    """Yield a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made)


@pytest.fixture
def node(tmp_path: Path, pipes: Path) -> Iterator[Setup]:
    mps = Mps(pipes=str(pipes), shm=str(pipes))
    setup = Setup(tmp_path, enforcer=mps, host_files=HostFilesOnDisk())
    setup.enforcers[mps.name] = mps
    use_real_cards(setup)
    yield setup
    setup.ledger.close()


@contextmanager
def daemon(pipes: Path) -> Iterator[None]:
    (pipes / "control").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(pipes / "control"))
        server.listen(128)
        yield


def test_claim_waits_for_the_daemon_and_is_prepared_by_a_later_call(
    node: Setup, pipes: Path
) -> None:
    claim = put_claim(node, "a", share_result())

    never_started = error_of(node.prepare(claim)[claim.uid])
    with daemon(pipes):
        pass
    ended = error_of(node.prepare(claim)[claim.uid])
    assert node.spec_of(claim) is None
    with daemon(pipes):
        prepared = node.prepare(claim)[claim.uid]

    assert f"{pipes}/control: No such file or directory" in never_started
    assert f"{pipes}/control: found a socket of an ended process" in ended
    assert isinstance(prepared, PreparedClaim)
    assert node.spec_of(claim) is not None


def test_repeated_prepare_fails_after_the_daemon_died(node: Setup, pipes: Path) -> None:
    claim = put_claim(node, "a", share_result())
    with daemon(pipes):
        node.prepare(claim)

    again = error_of(node.prepare(claim)[claim.uid])

    assert "found a socket of an ended process" in again


def test_claim_is_unprepared_without_the_daemon(node: Setup, pipes: Path) -> None:
    claim = put_claim(node, "a", share_result())
    with daemon(pipes):
        node.prepare(claim)

    node.unprepare(claim)

    assert node.spec_of(claim) is None
