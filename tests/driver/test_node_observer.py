"""The view of the node: what it is made of, and how often it is built."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.devices.device import Taint
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.core.names import DRIVER
from tensorfusion_dra.driver.node_observer import NodeObserver
from tensorfusion_dra.driver.publish import DeviceCatalog
from tests.support.builders.devices import NODE
from tests.support.prepared_node import (
    GPU_0,
    Setup,
    put_claim,
    share_result,
    simulated_inventory,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Observed(Setup):
    """A node with an observer.

    Attributes:
        reason: Why the store cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reason = ""
        self.verdicts: dict[str, tuple[CurrentVerdict, ...]] = {}
        self.observer = self.observing(self.catalog)

    def observing(self, catalog: DeviceCatalog) -> NodeObserver:
        return NodeObserver(
            catalog=catalog,
            xids=self.cards.xids,
            claims=self.recorded,
            current_verdicts=lambda: dict(self.verdicts),
            node="node-01",
            version="1.2.3",
            now=lambda: NOW,
        )

    def recorded(self) -> Sequence[PreparedClaim]:
        if self.reason:
            raise RetryableError(self.reason)
        return self.store.claims()

    def prepare_new(self, name: str) -> ClaimRef:
        return self.prepared(put_claim(self, name, share_result(tflops="10", vram="1Gi"))).ref


@pytest.fixture
def observed(tmp_path: Path) -> Observed:
    return Observed(tmp_path)


def test_card_has_the_taints_of_its_device_and_of_the_cluster(observed: Observed) -> None:
    of_node = Taint(key="k", value="v", effect="NoSchedule", since=NOW)
    of_rule = {"key": "r", "effect": "NoExecute"}
    selectors = [
        {"driver": DRIVER, "pool": NODE.pool, "device": GPU_0},
        {},
        None,
        {"device": "gpu-other"},
        {"driver": "gpu.example.com"},
        {"pool": "other"},
    ]
    rules = [{"spec": {"deviceSelector": each, "taint": of_rule}} for each in selectors]
    observed.observer.taint_rules = lambda: rules

    observed.cards.set_cordoned({GPU_0: of_node})
    first, *others = observed.observer.view().cards

    assert first.taints == (of_node.as_api(), of_rule, of_rule)
    assert all(each.taints == (of_rule,) for each in others)


def test_view_has_cards_and_shares(observed: Observed) -> None:
    for name in "ba":
        observed.prepare_new(name)

    view = observed.observer.view()

    assert (view.node, view.pool, view.version) == ("node-01", NODE.pool, "1.2.3")
    assert [card.device.gpu for card in view.cards] == list(simulated_inventory().gpus)
    assert [(str(each.claim.ref), each.share.device) for each in view.shares] == [
        ("default/a", GPU_0),
        ("default/b", GPU_0),
    ]
    assert view.cards[0].consumed.vram_bytes == 2 * view.shares[0].requested.vram_bytes == 2 * GIB
    assert (view.claims, view.shares_error, view.cards_missing) == (2, "", "")


def test_new_verdict_and_new_catalog_are_shown(observed: Observed) -> None:
    ref = observed.prepare_new("a")
    current = CurrentVerdict(verdict=verdicts.enforced("LimiterActive", "ok"), since=NOW)

    (unseen,) = observed.observer.view().shares
    observed.verdicts[ref.uid] = (current,)
    (seen,) = observed.observer.view().shares
    observed.use_cards(*(replace(gpu, milli_tflops=624_000) for gpu in simulated_inventory().gpus))
    (on_another,) = observed.observer.view().shares

    assert [unseen.enforcement, seen.enforcement] == [None, current]
    assert unseen.limit_nano_tflops is not None
    assert on_another.limit_nano_tflops == 2 * unseen.limit_nano_tflops


def test_after_an_error_of_the_ledger_the_last_known_shares_are_shown(observed: Observed) -> None:
    observed.prepare_new("a")
    observed.observer.view()
    observed.reason = "store: busy"

    view = observed.observer.view()

    assert (view.claims, view.shares_error) == (1, "store: busy")


def test_cards_that_were_not_read_yet_are_missing_with_a_reason(observed: Observed) -> None:

    view = observed.observing(DeviceCatalog()).view()

    assert (view.cards, view.pool) == ((), "")
    assert view.cards_missing == "this node's GPUs could not be read yet"


def test_reported_xids_are_counted_by_card(observed: Observed) -> None:
    sick, other = (gpu.uuid for gpu in simulated_inventory().gpus)
    for code, uuid in ((31, sick), (79, sick), (31, sick), (13, None), (13, "GPU-unknown")):
        observed.cards.on_event(CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=code))

    card, healthy = observed.observer.view().cards

    xids = [(each.code, each.count, each.marks_card) for each in card.xids]
    assert xids == [(31, 2, False), (79, 1, True)]
    assert card.unhealthy is not None
    assert card.unhealthy.worst.reason == "xid-79"
    assert (healthy.device.gpu.uuid, healthy.xids, healthy.unhealthy) == (other, (), None)
