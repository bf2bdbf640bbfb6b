"""Release of claims that the kubelet forgot, but of none that may still be in use."""

import copy
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tests.support.confirming_node import GONE_SECONDS, ConfirmingNode, delete_claim
from tests.support.confirming_node import ConfirmingNode as Node
from tests.support.ports import ClaimsInMemory
from tests.support.prepared_node import GPU_1


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    setup = Node(tmp_path)
    yield setup
    setup.ledger.close()


def replace_claim(claims: ClaimsInMemory, ref: ClaimRef) -> None:
    _change(claims, ref)["metadata"]["uid"] = "uid-of-another"


def deallocate_claim(claims: ClaimsInMemory, ref: ClaimRef) -> None:
    _change(claims, ref)["status"] = {}


def reallocate_to_another_node(claims: ClaimsInMemory, ref: ClaimRef) -> None:
    results = _change(claims, ref)["status"]["allocation"]["devices"]["results"]
    results[0]["pool"] = "default/node-02"


def _change(claims: ClaimsInMemory, ref: ClaimRef) -> Any:
    claims.stored[str(ref)] = copy.deepcopy(claims.stored[str(ref)])
    return claims.stored[str(ref)]


@pytest.mark.parametrize(
    "remove", [delete_claim, replace_claim, deallocate_claim, reallocate_to_another_node]
)
def test_claim_that_stays_gone_is_released_with_all_its_files(
    node: Node, remove: Callable[[ClaimsInMemory, ClaimRef], None]
) -> None:
    ref = node.prepare_new("a")
    node.prepare_new("b")
    remove(node.claims, ref)

    node.run_rounds_for(GONE_SECONDS)
    before = node.recorded_names()
    with capture_logs() as logs:
        node.run_rounds_for(120)

    assert before == ["a", "b"]
    assert node.recorded_names() == ["b"]
    assert node.spec_of(ref) is None
    (line,) = (each for each in logs if each["event"] == "claim_released")
    assert line["claim_uid"] == ref.uid


def test_claim_that_exists_again_restarts_the_gone_time(node: Node) -> None:
    ref = node.prepare_new()
    stored = node.claims.stored[str(ref)]
    delete_claim(node.claims, ref)
    node.run_rounds_for(GONE_SECONDS)

    node.claims.put(stored)
    node.run_round()
    delete_claim(node.claims, ref)
    node.run_rounds_for(GONE_SECONDS)

    assert node.recorded_names() == ["a"]


def test_unanswered_reads_release_nothing(node: Node) -> None:
    ref = node.prepare_new()
    delete_claim(node.claims, ref)
    node.run_rounds_for(GONE_SECONDS)
    node.claims.away = True

    for _ in range(3):
        with pytest.raises(RetryableError):
            node.run_round()

    assert node.recorded_names() == ["a"]


def test_time_while_the_node_is_not_ready_does_not_count(node: Node) -> None:
    """The kubelet may be down while the containers of a force-deleted pod still run."""
    ref = node.prepare_new()
    delete_claim(node.claims, ref)
    node.run_rounds_for(GONE_SECONDS)
    node.readiness.ready = False
    node.run_rounds_for(GONE_SECONDS * 10)
    node.readiness.ready = True

    node.run_rounds_for(GONE_SECONDS)
    assert node.recorded_names() == ["a"]

    node.run_rounds_for(120)
    assert node.recorded_names() == []


def test_claim_reallocated_just_before_its_release_is_kept(node: Node) -> None:
    ref = node.prepare_new()
    before = node.ledger.claims()

    released = node.preparer.release(ref, lambda: False, deadline=node.now + 1e9)

    assert not released
    assert node.ledger.claims() == before


def reallocate_on_this_node(node: Node, ref: ClaimRef) -> None:
    results = _change(node.claims, ref)["status"]["allocation"]["devices"]["results"]
    results[0] |= {"device": GPU_1, "shareID": str(uuid.uuid4())}


def test_claim_reallocated_on_this_node_is_never_released(node: Node) -> None:
    """The kubelet may have given the recorded share to the next pod without a call."""
    ref = node.prepare_new()
    reallocate_on_this_node(node, ref)

    node.run_rounds_for(GONE_SECONDS * 3)

    assert node.recorded_names() == ["a"]
    assert node.spec_of(ref) is not None


def remove_record(node: Node, ref: ClaimRef) -> None:
    with node.ledger.transaction() as transaction:
        transaction.remove(ref.uid)


def test_allocated_claim_with_files_but_no_record_is_prepared_again(node: Node) -> None:
    ref = node.prepare_new()
    (before,) = node.ledger.claims()
    spec = node.spec_of(ref)
    remove_record(node, ref)

    node.run_round(ref)

    assert node.ledger.claims() == [before]
    assert node.spec_of(ref) == spec


def test_files_without_a_record_are_removed_once_their_claim_stays_gone(node: Node) -> None:
    ref = node.prepare_new()
    remove_record(node, ref)
    delete_claim(node.claims, ref)

    for _ in range(10):
        node.run_round(ref)
    assert node.spec_of(ref) is not None

    for _ in range(2):
        node.run_round(ref)
    assert node.spec_of(ref) is None
    assert node.node_files.claim_uids() == frozenset()


class PartlyUnreadableClaims(ClaimsInMemory):
    """Claims of which some are answered with invalid JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[str] = set()

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Any:
        found = super().fetch(ref, wait_seconds=wait_seconds)
        if ref.name in self.unreadable:
            raise RetryableError(f"claim {ref}: found no JSON")
        return found


def node_with_unreadable_claims(folder: Path, *names: str) -> ConfirmingNode:
    claims = PartlyUnreadableClaims()
    node = ConfirmingNode(folder, claims)
    for name in ("a", "b", *names):
        node.prepare_new(name)
    claims.unreadable = {*names}
    return node


def test_unreadable_claims_do_not_prevent_the_release_of_others(tmp_path: Path) -> None:
    node = node_with_unreadable_claims(tmp_path, "unreadable-1", "unreadable-2")
    refs = {claim.ref.name: claim.ref for claim in node.ledger.claims()}
    delete_claim(node.claims, refs["b"])
    node.stale_claims.check_first([refs["unreadable-1"].uid, refs["unreadable-2"].uid])

    for _ in range(30):
        with suppress(RetryableError):
            node.run_round()

    assert node.recorded_names() == ["a", "unreadable-1", "unreadable-2"]
    node.ledger.close()


def test_round_ends_after_several_unreadable_claims_and_later_rounds_fetch_the_rest(
    tmp_path: Path,
) -> None:
    names = [f"unreadable-{number}" for number in range(8)]
    node = node_with_unreadable_claims(tmp_path, *names)
    fetched: list[str] = []

    for _ in range(15):
        with suppress(RetryableError):
            node.run_round()
        failed = [name for name in node.claims.fetched if "unreadable" in name]
        assert len(failed) <= 3
        fetched += node.claims.fetched

    assert {f"default/{name}" for name in ("a", "b", *names)} == {*fetched}
    node.ledger.close()


def test_malformed_claim_does_not_prevent_the_release_of_others(tmp_path: Path) -> None:
    node = ConfirmingNode(tmp_path)
    broken, gone = node.prepare_new("a"), node.prepare_new("b")
    node.claims.stored[str(broken)] = {"metadata": {"uid": broken.uid}, "status": "allocated"}
    delete_claim(node.claims, gone)

    for _ in range(20):
        with suppress(RetryableError):
            node.run_round()

    assert node.recorded_names() == ["a"]
    node.ledger.close()
