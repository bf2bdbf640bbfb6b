"""Compute that the node plugin lends under HAMi-core, when the process ends in any way."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from dra_simulator.api.faults import Delay
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import NodeAccess
from tensorfusion_dra.enforcers.hami_core.lending import ClaimFolders, LendingLoop
from tests.faults.node import Node
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import limit
from tests.support.ports import PodsInMemory
from tests.support.threads import running
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tests.support.worker_node import WorkerPodsInMemory

pytestmark = pytest.mark.process

SWITCH: Final = 2_008_900
LAUNCHED: Final = 2_008_912
CARD: Final = 0


class Tenant:
    """A claim whose containers run; its file is as HAMi-core has made it."""

    def __init__(self, folder: Path, ref: ClaimRef) -> None:
        self.ref = ref
        self.path = folder / "claims" / ref.uid / "gpu.cache"
        self.path.write_bytes(enforcer_files.hami_cache([limit(17, 16)] * 16))

    def launch(self) -> None:
        """Launch a kernel."""
        with self.path.open("r+b") as file:
            file.seek(LAUNCHED)
            file.write(int(time.time()).to_bytes(8, "little"))

    @property
    def is_lifted(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(SWITCH)
            return file.read(4) == bytes(4)

    def works_until_lifted(self) -> bool:
        self.launch()
        return self.is_lifted


@pytest.fixture
def folder(node: Node) -> Path:
    return node.use_hami_core()


@pytest.fixture
def metrics(node: Node) -> str:
    """Return the URL of the metrics of the node plugin."""
    return node.serve_metrics()


@pytest.fixture
def tenant(node: Node, folder: Path, metrics: str) -> Tenant:
    """Return a tenant to whom its card is lent by a running node plugin."""
    refs = [node.claim(name, CARD, vram="16Gi") for name in "ab"]
    node.start()
    assert [type(each) for each in (node.prepare(*refs) or {}).values()] == [list] * 2, node.log()
    lent, _ = [Tenant(folder, ref) for ref in refs]
    assert eventually(lent.works_until_lifted), node.log()
    assert lent.ref.uid in (folder / "lifted").read_text()
    return lent


@contextmanager
def prepare_in_flight(node: Node, *, seconds: float) -> Iterator[threading.Thread]:
    """Have the node plugin prepare a claim, whose reading takes so long, during the block."""
    ref = node.claim("c", 1, vram="16Gi")
    reading = node.server.faults.add("get", "resourceclaims", Delay(seconds), times=1)
    call = threading.Thread(target=node.prepare, args=[ref])
    call.start()
    try:
        assert eventually(lambda: reading.hits == 1)
        yield call
    finally:
        call.join()


def test_metrics_show_what_is_lent(node: Node, metrics: str, tenant: Tenant) -> None:
    def lent() -> list[str]:
        tenant.launch()
        with urlopen(metrics, timeout=PATIENCE_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return [line for line in lines if "share_raised_compute_ratio{" in line]

    assert eventually(lambda: len(lent()) == 1), node.log()
    (line,) = lent()
    assert f'claim="{tenant.ref.name}"' in line
    assert line.endswith(" 1.0")


def test_start_after_a_kill_takes_back_before_the_kubelet_can_call(
    node: Node, tenant: Tenant
) -> None:
    node.kill()
    assert tenant.is_lifted

    node.launch()
    while not node.is_served():
        assert node.is_alive(), node.log()

    assert not tenant.is_lifted


def test_stop_takes_back_while_a_prepare_is_still_answered(node: Node, tenant: Tenant) -> None:
    with prepare_in_flight(node, seconds=3) as call:
        os.kill(node.pid, signal.SIGTERM)
        assert eventually(lambda: not tenant.is_lifted)
        assert call.is_alive()
        assert node.is_alive()
    assert node.wait() == 0, node.log()


def test_instance_beside_the_lender_waits_and_takes_over_when_that_is_killed(
    node: Node, folder: Path, tenant: Tenant
) -> None:
    stopping, tries = threading.Event(), itertools.count()

    def wait(_: float) -> bool:
        next(tries)
        return stopping.wait(0.01)

    access = NodeAccess(tuple, PodsInMemory(), WorkerPodsInMemory(), wait_for_stop=wait)
    other = LendingLoop(ClaimFolders(str(folder)), access)
    other.begin()
    with running(other.run, stop=stopping.set):
        assert eventually(lambda: next(tries) > 20)
        assert tenant.is_lifted

        node.kill()
        assert eventually(lambda: not tenant.is_lifted)
