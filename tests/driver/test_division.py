"""Limits follow the cards, the pool and the rules, also when no claim comes or goes."""

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
from tensorfusion_dra.driver.catalog import CatalogReader
from tests.support.ports import FixedDiscovery
from tests.support.prepared_node import GPU_0, NODE, Setup, inventory, put, share
from tests.support.stored_claims import stored_claim
from tests.support.waiting import PATIENCE_SECONDS, eventually

LIMIT = "tensor-fusion.ai/vram-limit"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.ledger.close()


@contextmanager
def dividing(node: Setup) -> Iterator[None]:
    division = node.division(retry_seconds=0.01)
    thread = Thread(target=division.run)
    thread.start()
    try:
        yield
    finally:
        division.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def wanting(node: Setup, name: str, limit: str, **amounts: Any) -> ClaimRef:
    claim = stored_claim(name, share(GPU_0, **amounts))
    claim["metadata"]["annotations"] = {LIMIT: limit}
    ref = node.claims.put(claim)
    assert isinstance(node.prepare(ref)[ref.uid], PreparedClaim)
    return ref


def gib(node: Setup, ref: ClaimRef) -> float:
    record = node.ledger.get(ref.uid)
    assert record is not None
    (limit,) = [each.limit for each in record.shares]
    assert limit is not None
    return limit.vram_bytes / GIB


def with_memory(node: Setup, vram_gib: int) -> None:
    """The same cards, of which there is less or more to hand out."""
    cards = tuple(replace(gpu, vram_bytes=vram_gib * GIB) for gpu in inventory().gpus)
    node.discovery.inventory = Inventory(gpus=cards)
    node.catalog.refresh()


def test_limits_shrink_with_the_capacity_and_grow_with_it(node: Setup) -> None:
    ref = wanting(node, "a", "80Gi", vram="10Gi")

    with dividing(node):
        with_memory(node, 40)
        assert eventually(lambda: gib(node, ref) == 40)
        assert eventually(lambda: "=40960" in str(node.spec_of(ref)))
        with_memory(node, 80)
        assert eventually(lambda: gib(node, ref) == 80)


def test_a_claim_that_went_before_the_cards_were_known_leaves_its_share_to_the_others(
    node: Setup,
) -> None:
    first = wanting(node, "a", "80Gi", vram="10Gi")
    second = put(node, "b", share(GPU_0, tflops="1", vram="60Gi"))
    node.prepare(second)
    assert gib(node, first) == 20
    after = node.restarted()
    after.discovery.inventory = None
    after.catalog = CatalogReader(FixedDiscovery(None), NODE)
    after.preparer = after.with_claims(after.claims)

    after.unprepare(second)
    before = gib(after, first)
    after.catalog._discovery = FixedDiscovery(inventory())
    with dividing(after):
        after.catalog.refresh()
        assert eventually(lambda: gib(after, first) == 80)

    assert before == 20
    after.ledger.close()


def test_rules_that_changed_over_a_restart_hold_for_claims_that_were_there(node: Setup) -> None:
    node.rules = replace(node.rules, overcommit_limits=True)
    node.preparer = node.with_claims(node.claims)
    refs = [wanting(node, name, "80Gi", vram="10Gi") for name in "ab"]
    assert [gib(node, ref) for ref in refs] == [80, 80]

    after = node.restarted()
    with dividing(after):
        assert eventually(lambda: [gib(after, ref) for ref in refs] == [70, 10])
    after.ledger.close()


def test_where_nothing_changes_the_records_are_read_once_and_nothing_is_written(
    node: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanting(node, "a", "40Gi", vram="10Gi")
    asked: list[str] = []

    def counted(method: str) -> Any:
        original = getattr(node.ledger, method)

        def call() -> Any:
            asked.append(method)
            return original()

        return call

    for method in ("claims", "transaction"):
        monkeypatch.setattr(node.ledger, method, counted(method))

    assert node.division().divide() == ()

    assert asked == ["claims"]


def test_a_ledger_that_cannot_be_written_now_is_tried_again(
    node: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = wanting(node, "a", "80Gi", vram="10Gi")
    failures = iter([RetryableError("the disk is full")] * 2)
    transaction = node.ledger.transaction

    def failing() -> Any:
        for error in failures:
            raise error
        return transaction()

    monkeypatch.setattr(node.ledger, "transaction", failing)
    with capture_logs() as logs, dividing(node):
        with_memory(node, 40)
        assert eventually(lambda: gib(node, ref) == 40)

    assert [line["event"] for line in logs].count("limits_recompute_failed") == 2
