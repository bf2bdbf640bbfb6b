"""Files of a new record, written while another instance changes or removes that record."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.enforcers.enforcer import Needs
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.ports import HostFilesInMemory
from tests.support.prepared_node import (
    Setup,
    error_of,
    limits_of,
    put_annotated_claim,
    put_claim,
    share_result,
)


class HostFilesThatAct(HostFilesInMemory):
    """Takes an action once, between the record of a claim and its files."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[], object] | None = None

    def provide(self, needs: Needs) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
        super().provide(needs)


@pytest.fixture
def host_files() -> HostFilesThatAct:
    return HostFilesThatAct()


@pytest.fixture
def node(tmp_path: Path, host_files: HostFilesThatAct) -> Iterator[Setup]:
    setup = Setup(tmp_path, host_files=host_files)
    yield setup
    setup.ledger.close()


@pytest.fixture
def other(node: Setup) -> Iterator[Setup]:
    """Return another instance on the same node, as in a rolling update."""
    setup = Setup(node.folder, node.claims)
    yield setup
    setup.ledger.close()


def limit_bytes(node: Setup, ref: Any) -> int:
    (limits,) = limits_of(node, ref)
    return int(limits["vramBytes"])


def test_files_are_those_of_the_newest_record(
    node: Setup, other: Setup, host_files: HostFilesThatAct
) -> None:
    wanted = {"tensor-fusion.ai/vram-limit": "60Gi"}
    a = put_annotated_claim(node, "a", wanted, tflops="1", vram="20Gi")
    b = put_claim(node, "b", share_result(tflops="1", vram="50Gi"))
    host_files.act = lambda: other.prepare(b)

    outcome = node.prepare(a)[a.uid]

    assert isinstance(outcome, PreparedClaim)
    (share,) = outcome.shares
    assert share.limit is not None
    assert share.limit.vram_bytes == limit_bytes(node, a) < 31 * GIB


def test_claim_that_another_instance_unprepared_leaves_no_files(
    node: Setup, other: Setup, host_files: HostFilesThatAct
) -> None:
    ref = put_claim(node, "a", share_result())
    host_files.act = lambda: other.unprepare(ref)

    outcome = node.prepare(ref)[ref.uid]

    assert error_of(outcome) == "claim default/a: it was unprepared meanwhile"
    assert node.spec_of(ref) is None
    assert list(node.limits_folder.iterdir()) == []
    assert node.ledger.claims() == []


def test_temporary_file_that_a_recovery_removed_is_written_again(
    node: Setup, other: Setup, host_files: HostFilesThatAct, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = put_claim(node, "a", share_result())
    fchmod = os.fchmod

    def recover_before(descriptor: int, mode: int) -> None:
        monkeypatch.setattr(os, "fchmod", fchmod)
        other.node_files.remove_unfinished()
        fchmod(descriptor, mode)

    host_files.act = lambda: monkeypatch.setattr(os, "fchmod", recover_before)

    outcome = node.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim)
    assert node.spec_of(ref) is not None
    assert limit_bytes(node, ref) > 0
