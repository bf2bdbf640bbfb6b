"""LimitChanges of cards: limits follow the cards, the pool and the rules without any call."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tests.support.builders.devices import NODE
from tests.support.builders.stored_claims import stored_claim
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import GPU_0, Setup, put_claim, share_result, simulated_inventory
from tests.support.waiting import PATIENCE_SECONDS, eventually

LIMIT = "tensor-fusion.ai/vram-limit"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.ledger.close()


@contextmanager
def running_limit_changes(node: Setup) -> Iterator[None]:
    limit_changes = node.limit_changes(retry_seconds=0.01)
    thread = Thread(target=limit_changes.run)
    thread.start()
    try:
        yield
    finally:
        limit_changes.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def prepare_with_limit(node: Setup, name: str, limit: str, **amounts: Any) -> ClaimRef:
    claim = stored_claim(name, share_result(GPU_0, **amounts))
    claim["metadata"]["annotations"] = {LIMIT: limit}
    ref = node.claims.put(claim)
    assert isinstance(node.prepare(ref)[ref.uid], PreparedClaim)
    return ref


def limit_gib(node: Setup, ref: ClaimRef) -> float:
    record = node.ledger.get(ref.uid)
    assert record is not None
    (limit,) = [each.limit for each in record.shares]
    assert limit is not None
    return limit.vram_bytes / GIB


def set_card_memory(node: Setup, vram_gib: int) -> None:
    """Change the memory of the node's cards."""
    cards = tuple(replace(gpu, vram_bytes=vram_gib * GIB) for gpu in simulated_inventory().gpus)
    node.discovery.inventory = Inventory(gpus=cards)
    node.catalog.refresh()


def test_limits_shrink_and_grow_with_the_capacity(node: Setup) -> None:
    ref = prepare_with_limit(node, "a", "80Gi", vram="10Gi")

    with running_limit_changes(node):
        set_card_memory(node, 40)
        assert eventually(lambda: limit_gib(node, ref) == 40)
        assert eventually(lambda: "=40960" in str(node.spec_of(ref)))
        set_card_memory(node, 80)
        assert eventually(lambda: limit_gib(node, ref) == 80)


def test_memory_of_a_claim_unprepared_before_the_first_reading_is_lent_later(
    node: Setup,
) -> None:
    first = prepare_with_limit(node, "a", "80Gi", vram="10Gi")
    second = put_claim(node, "b", share_result(GPU_0, tflops="1", vram="60Gi"))
    node.prepare(second)
    assert limit_gib(node, first) == 20
    after = node.restarted()
    after.discovery.inventory = None
    after.catalog = DeviceCatalog(FixedDiscovery(None), NODE)
    after.preparer = after.with_claims(after.claims)

    after.unprepare(second)
    before = limit_gib(after, first)
    after.catalog._discovery = FixedDiscovery(simulated_inventory())
    with running_limit_changes(after):
        after.catalog.refresh()
        assert eventually(lambda: limit_gib(after, first) == 80)

    assert before == 20
    after.ledger.close()


def test_rules_changed_over_a_restart_apply_to_existing_claims(node: Setup) -> None:
    node.rules = replace(node.rules, overcommit_limits=True)
    node.preparer = node.with_claims(node.claims)
    refs = [prepare_with_limit(node, name, "80Gi", vram="10Gi") for name in "ab"]
    assert [limit_gib(node, ref) for ref in refs] == [80, 80]

    after = node.restarted()
    with running_limit_changes(after):
        assert eventually(lambda: [limit_gib(after, ref) for ref in refs] == [70, 10])
    after.ledger.close()


def test_unchanged_limits_are_not_written(node: Setup) -> None:
    prepare_with_limit(node, "a", "40Gi", vram="10Gi")
    log = node.folder / "plugin" / "ledger.sqlite3-wal"
    before = log.read_bytes()

    assert node.limit_changes().divide() == ()

    assert log.read_bytes() == before


def test_failed_write_to_the_ledger_is_retried(
    node: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = prepare_with_limit(node, "a", "80Gi", vram="10Gi")
    failures = iter([RetryableError("the disk is full")] * 2)
    transaction = node.ledger.transaction

    def failing() -> Any:
        for error in failures:
            raise error
        return transaction()

    monkeypatch.setattr(node.ledger, "transaction", failing)
    with capture_logs() as logs, running_limit_changes(node):
        set_card_memory(node, 40)
        assert eventually(lambda: limit_gib(node, ref) == 40)

    assert [line["event"] for line in logs].count("limits_recompute_failed") == 2
