"""The loop that repairs a running node."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.observed.node_view import LedgerView
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.recover import Reconciler
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tests.support.builders.devices import NODE
from tests.support.ledgers import edited
from tests.support.ports import EventsInMemory, FixedDiscovery, Readiness
from tests.support.prepared_node import (
    Setup,
    put_claim,
    share_result,
    simulated_inventory,
    spec_file,
)
from tests.support.waiting import PATIENCE_SECONDS, eventually


class Node(Setup):
    def __init__(self, folder: Path, *, boot_id: str = "boot-1", cards: bool = True) -> None:
        super().__init__(folder, boot_id=boot_id)
        self.events = EventsInMemory()
        self.recovered: list[Sequence[PreparedClaim]] = []
        self.cards = FixedDiscovery(simulated_inventory() if cards else None)
        self.reader = DeviceCatalog(self.cards, NODE)
        if cards:
            self.reader.refresh()

    @contextmanager
    def reconciling(self, *, seconds: float = 0.05) -> Iterator[Reconciler]:
        reconciler = Reconciler(self.ledger, self.node_files, boot_id=self.boot_id, seconds=seconds)
        reconciler.begin()
        preparer = self.with_claims(self.claims, self.reader)
        stale_claims = StaleClaimCollector(
            self.claims, Readiness(), preparer, gone_seconds=0.1, check_seconds=0.05
        )
        thread = Thread(
            target=reconciler.run,
            args=(preparer, stale_claims, self.events),
            kwargs={"on_recovered": self.recovered.append},
        )
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


def test_spec_that_vanishes_is_written_again(node: Node) -> None:
    ref = put_claim(node, "a", share_result())
    node.prepare(ref)
    spec = node.spec_of(ref)

    with node.reconciling() as reconciler:
        (node.cdi_folder / spec_file(ref.uid)).unlink()

        assert eventually(lambda: node.spec_of(ref) == spec)

    assert reconciler.ledger() == LedgerView()


def test_start_and_loop_do_not_fetch_claims_at_once(node: Node) -> None:
    node.prepare(put_claim(node, "a", share_result()))
    node.claims.fetched.clear()
    node.claims.away = True

    with node.reconciling(seconds=60):
        time.sleep(0.1)

    assert node.claims.fetched == []


def restarted_with_damaged_ledger(node: Node) -> Node:
    node.ledger.close()
    (node.folder / "plugin" / "ledger.sqlite3").write_bytes(b"garbage")
    after = Node(node.folder)
    after.claims.stored = node.claims.stored
    return after


def test_quarantined_ledger_causes_an_event_and_its_claims_are_fetched(
    node: Node,
) -> None:
    refs = [put_claim(node, name, share_result(tflops="10", vram="1Gi")) for name in "abc"]
    node.prepare(*refs)
    after = restarted_with_damaged_ledger(node)

    with after.reconciling(seconds=60) as reconciler:
        assert eventually(lambda: len(after.claims.fetched) == 3)

    assert reconciler.ledger() == LedgerView(quarantined=1, restored=3)
    ((reason, message),) = after.events.written
    assert reason == "LedgerQuarantined"
    assert "file is not a database" in message
    assert str(after.folder / "plugin" / "ledger-damaged-") in message
    assert "claims restored from copies: 3;" in message
    assert [claim.ref for claim in after.ledger.claims()] == sorted(refs, key=lambda r: r.uid)
    after.ledger.close()


def test_event_about_the_ledger_is_retried_until_the_api_server_accepts_it(node: Node) -> None:
    node.prepare(put_claim(node, "a", share_result()))
    after = restarted_with_damaged_ledger(node)
    after.events.away = True

    with after.reconciling():
        assert eventually(lambda: len(after.claims.fetched) > 1)
        assert after.events.written == []
        after.events.away = False
        assert eventually(lambda: len(after.events.written) > 0)
        fetched = len(after.claims.fetched)
        assert eventually(lambda: len(after.claims.fetched) > fetched + 1)

    assert len(after.events.written) == 1
    after.ledger.close()


def test_damage_to_the_ledger_is_repaired_without_a_call(node: Node) -> None:
    ref = put_claim(node, "a", share_result())
    outcome = node.prepare(ref)[ref.uid]
    path = node.folder / "plugin" / "ledger.sqlite3"
    edited(path, "PRAGMA wal_checkpoint(TRUNCATE)")

    with node.reconciling():
        path.write_bytes(b"\xa5" * 100_000)
        assert eventually(lambda: len(node.events.written) == 1)

    assert isinstance(outcome, PreparedClaim)
    assert node.ledger.claims() == [outcome]


def test_specs_are_rebuilt_after_a_reboot_once_the_cards_are_known(node: Node) -> None:
    ref = put_claim(node, "a", share_result())
    node.prepare(ref)
    spec = node.spec_of(ref)
    (node.cdi_folder / spec_file(ref.uid)).unlink()
    node.ledger.close()
    after = Node(node.folder, boot_id="boot-2", cards=False)

    with after.reconciling(seconds=60), capture_logs() as logs:
        assert eventually(lambda: "claim_refresh_failed" in logged_events(logs))
        assert after.spec_of(ref) is None
        after.cards.inventory = simulated_inventory()
        after.reader.refresh()
        assert eventually(lambda: after.spec_of(ref) == spec)

    assert [claim.boot_id for claim in after.ledger.claims()] == ["boot-2"]
    after.ledger.close()


def test_lasting_recovery_failure_is_logged_once(node: Node) -> None:
    ref = put_claim(node, "a", share_result())
    node.prepare(ref)
    (node.cdi_folder / spec_file(ref.uid)).unlink()
    (node.cdi_folder / spec_file(ref.uid) / "full").mkdir(parents=True)

    with capture_logs() as logs, node.reconciling():
        assert eventually(fetched_more_often(node, 3))

    assert logged_events(logs).count("claim_recovery_failed") == 1


def fetched_more_often(node: Node, times: int) -> Callable[[], bool]:
    before = len(node.claims.fetched)
    return lambda: len(node.claims.fetched) >= before + times


def logged_events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]
