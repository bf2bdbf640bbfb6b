"""The loop that keeps a running node right."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.reconciler import Reconciler
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tests.support.ledgers import edited
from tests.support.ports import EventsInMemory, FixedDiscovery, Readiness
from tests.support.prepared_node import NODE, Setup, inventory, put, share, spec_file
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Node(Setup):
    def __init__(self, folder: Path, *, boot_id: str = "boot-1", cards: bool = True) -> None:
        super().__init__(folder, boot_id=boot_id)
        self.events = EventsInMemory()
        self.cards = FixedDiscovery(inventory() if cards else None)
        self.reader = CatalogReader(self.cards, NODE)
        if cards:
            self.reader.refresh()

    @contextmanager
    def kept(self, *, seconds: float = 0.05) -> Iterator[Reconciler]:
        reconciler = Reconciler(self.ledger, self.projection, boot_id=self.boot_id, seconds=seconds)
        reconciler.begin()
        preparer = self.with_claims(self.claims, self.reader)
        stale_claims = StaleClaimCollector(self.claims, Readiness(), preparer, gone_seconds=0.1)
        thread = Thread(target=reconciler.run, args=(preparer, stale_claims, self.events))
        thread.start()
        try:
            yield reconciler
        finally:
            reconciler.stop()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    setup = Node(tmp_path)
    yield setup
    setup.ledger.close()


def test_a_spec_that_vanishes_while_the_node_runs_is_back(node: Node) -> None:
    ref = put(node, "a", share())
    node.prepare(ref)
    spec = node.spec_of(ref)

    with node.kept():
        (node.cdi_folder / spec_file(ref.uid)).unlink()

        assert eventually(lambda: node.spec_of(ref) == spec)


def test_a_claim_that_the_kubelet_forgot_is_freed(node: Node) -> None:
    ref = put(node, "a", share())
    node.prepare(ref)
    del node.claims.stored[str(ref)]

    with node.kept():
        assert eventually(lambda: not node.ledger.claims())

    assert node.spec_of(ref) is None


def test_the_start_asks_nobody_and_the_loop_not_at_once(node: Node) -> None:
    node.prepare(put(node, "a", share()))
    node.claims.fetched.clear()
    node.claims.away = True

    with node.kept(seconds=60):
        time.sleep(0.1)

    assert node.claims.fetched == []


def damaged(node: Node) -> Node:
    node.ledger.close()
    (node.folder / "plugin" / "ledger.sqlite3").write_bytes(b"garbage")
    after = Node(node.folder)
    after.claims.stored = node.claims.stored
    return after


def test_a_ledger_that_was_set_aside_is_told_at_the_node_and_its_claims_are_asked_for(
    node: Node,
) -> None:
    refs = [put(node, name, share(tflops="10", vram="1Gi")) for name in "abc"]
    node.prepare(*refs)
    after = damaged(node)

    with after.kept(seconds=60):
        assert eventually(lambda: len(after.claims.fetched) == 3)

    ((reason, message),) = after.events.written
    assert reason == "LedgerSetAside"
    assert "file is not a database" in message
    assert str(after.folder / "plugin" / "ledger-damaged-") in message
    assert "the 3 claims of which there were copies" in message
    assert [claim.ref for claim in after.ledger.claims()] == sorted(refs, key=lambda r: r.uid)
    after.ledger.close()


def test_it_is_told_once_the_api_server_takes_it(node: Node) -> None:
    node.prepare(put(node, "a", share()))
    after = damaged(node)
    after.events.away = True

    with after.kept():
        assert eventually(lambda: len(after.claims.fetched) > 1)
        assert after.events.written == []
        after.events.away = False
        assert eventually(lambda: len(after.events.written) > 0)
        asked = len(after.claims.fetched)
        assert eventually(lambda: len(after.claims.fetched) > asked + 1)

    assert len(after.events.written) == 1
    after.ledger.close()


def test_damage_while_the_node_runs_is_put_right_without_a_call(node: Node) -> None:
    ref = put(node, "a", share())
    outcome = node.prepare(ref)[ref.uid]
    path = node.folder / "plugin" / "ledger.sqlite3"
    edited(path, "PRAGMA wal_checkpoint(TRUNCATE)")

    with node.kept():
        path.write_bytes(b"\xa5" * 100_000)
        assert eventually(lambda: len(node.events.written) == 1)

    assert isinstance(outcome, PreparedClaim)
    assert node.ledger.claims() == [outcome]


def test_after_a_reboot_specs_are_back_as_soon_as_the_cards_are_known(node: Node) -> None:
    ref = put(node, "a", share())
    node.prepare(ref)
    spec = node.spec_of(ref)
    (node.cdi_folder / spec_file(ref.uid)).unlink()
    node.ledger.close()
    after = Node(node.folder, boot_id="boot-2", cards=False)

    with after.kept(seconds=60), capture_logs() as logs:
        assert eventually(lambda: "claim_refresh_failed" in events(logs))
        assert after.spec_of(ref) is None
        after.cards.inventory = inventory()
        after.reader.refresh()
        assert eventually(lambda: after.spec_of(ref) == spec)

    assert [claim.boot_id for claim in after.ledger.claims()] == ["boot-2"]
    after.ledger.close()


def test_a_lasting_trouble_is_one_line(node: Node) -> None:
    ref = put(node, "a", share())
    node.prepare(ref)
    (node.cdi_folder / spec_file(ref.uid)).unlink()
    (node.cdi_folder / spec_file(ref.uid) / "full").mkdir(parents=True)

    with capture_logs() as logs, node.kept():
        assert eventually(asked_more_often(node, 3))

    assert events(logs).count("claim_recovery_failed") == 1


def asked_more_often(node: Node, times: int) -> Callable[[], bool]:
    before = len(node.claims.fetched)
    return lambda: len(node.claims.fetched) >= before + times


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]
