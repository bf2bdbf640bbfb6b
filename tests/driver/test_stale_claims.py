"""Claims that the kubelet forgot are freed, and no claim is freed that may still be used."""

import copy
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.stale_claims import MOST_PER_ROUND
from tests.support.confirming_node import GONE_SECONDS, deleted
from tests.support.confirming_node import ConfirmingNode as Node
from tests.support.ports import ClaimsInMemory
from tests.support.prepared_node import GPU_1, put, share


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    setup = Node(tmp_path)
    yield setup
    setup.ledger.close()


def replaced(claims: ClaimsInMemory, ref: ClaimRef) -> None:
    _change(claims, ref)["metadata"]["uid"] = "uid-of-another"


def deallocated(claims: ClaimsInMemory, ref: ClaimRef) -> None:
    _change(claims, ref)["status"] = {}


def reallocated(claims: ClaimsInMemory, ref: ClaimRef) -> None:
    results = _change(claims, ref)["status"]["allocation"]["devices"]["results"]
    results[0]["pool"] = "default/node-02"


def _change(claims: ClaimsInMemory, ref: ClaimRef) -> Any:
    claims.stored[str(ref)] = copy.deepcopy(claims.stored[str(ref)])
    return claims.stored[str(ref)]


@pytest.mark.parametrize("lose", [deleted, replaced, deallocated, reallocated])
def test_a_claim_that_stays_gone_is_freed_with_all_its_files(
    node: Node, lose: Callable[[ClaimsInMemory, ClaimRef], None]
) -> None:
    ref = node.prepared("a")
    node.prepared("b")
    lose(node.claims, ref)

    node.look_for(GONE_SECONDS)
    before = node.held()
    with capture_logs() as logs:
        node.look_for(120)

    assert before == ["a", "b"]
    assert node.held() == ["b"]
    assert node.spec_of(ref) is None
    (line,) = (each for each in logs if each["event"] == "claim_released")
    assert line["claim_uid"] == ref.uid


def test_what_was_lent_to_others_is_theirs_once_a_claim_is_freed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    first, second = put(node, "a", share(vram="60Gi")), put(node, "b", share(vram="20Gi"))
    node.claims.stored[str(second)]["metadata"]["annotations"] = {
        "tensor-fusion.ai/vram-limit": "40Gi"
    }
    node.prepare(first, second)
    deleted(node.claims, first)

    node.look_for(GONE_SECONDS + 120)

    (left,) = node.ledger.claims()
    assert left.shares[0].limit is not None
    assert left.shares[0].limit.vram_bytes == 40 * 2**30
    node.ledger.close()


def test_a_claim_that_comes_back_was_never_gone(node: Node) -> None:
    ref = node.prepared()
    stored = node.claims.stored[str(ref)]
    deleted(node.claims, ref)
    node.look_for(GONE_SECONDS)

    node.claims.put(stored)
    node.look()
    deleted(node.claims, ref)
    node.look_for(GONE_SECONDS)

    assert node.held() == ["a"]


def test_an_api_server_without_an_answer_frees_nothing(node: Node) -> None:
    ref = node.prepared()
    deleted(node.claims, ref)
    node.look_for(GONE_SECONDS)
    node.claims.away = True

    for _ in range(3):
        with pytest.raises(RetryableError):
            node.look()

    assert node.held() == ["a"]


def test_time_in_which_the_node_was_not_ready_does_not_count(node: Node) -> None:
    """The kubelet may be away, and the containers of a pod that was deleted by force run on."""
    ref = node.prepared()
    deleted(node.claims, ref)
    node.look_for(GONE_SECONDS)
    node.readiness.ready = False
    node.look_for(GONE_SECONDS * 10)
    node.readiness.ready = True

    node.look_for(GONE_SECONDS)
    assert node.held() == ["a"]

    node.look_for(120)
    assert node.held() == []


def test_the_kubelets_own_call_comes_first_and_nothing_is_freed_twice(node: Node) -> None:
    ref = node.prepared()
    deleted(node.claims, ref)
    node.look_for(120)

    node.unprepare(ref)

    with capture_logs() as logs:
        node.look_for(GONE_SECONDS * 2)
    assert [line["event"] for line in logs] == []


def test_a_claim_that_is_allocated_again_in_the_last_moment_stays(node: Node) -> None:
    ref = node.prepared()
    held = node.ledger.claims()

    released = node.preparer.release(ref, lambda: False, deadline=node.now + 1e9)

    assert not released
    assert node.ledger.claims() == held


def allocated_here_anew(node: Node, ref: ClaimRef) -> None:
    results = _change(node.claims, ref)["status"]["allocation"]["devices"]["results"]
    results[0] |= {"device": GPU_1, "shareID": str(uuid.uuid4())}


def test_a_claim_that_is_allocated_on_this_node_anew_is_never_freed(node: Node) -> None:
    """The kubelet may have given the recorded share to the next pod without a call."""
    ref = node.prepared()
    allocated_here_anew(node, ref)

    node.look_for(GONE_SECONDS * 3)

    assert node.held() == ["a"]
    assert node.spec_of(ref) is not None


def test_a_thousand_claims_are_asked_for_a_few_at_a_time_and_each_in_turn(node: Node) -> None:
    refs = [node.prepared(f"c{number:03}") for number in range(100)]

    rounds = [node.look() for _ in range(60)]

    assert max(map(len, rounds)) == MOST_PER_ROUND
    assert {len(asked) for asked in rounds[10:]} == {4}
    assert sorted(name for asked in rounds[:10] for name in asked) == [str(ref) for ref in refs]
    assert sorted(name for asked in rounds[10:35] for name in asked) == [str(ref) for ref in refs]


def test_claims_that_come_and_go_are_not_asked_for_just_because_they_are_new(node: Node) -> None:
    node.prepared("a")
    node.look()

    for number in range(8):
        node.prepared(f"new-{number}")

    assert node.look() == ["default/a"]


def test_what_seems_gone_is_asked_for_beside_the_others(node: Node) -> None:
    refs = [node.prepared(f"c{number}") for number in range(4)]
    node.look()
    for ref in refs[:2]:
        deleted(node.claims, ref)
    node.look_for(60 * 4)

    asked = node.look()

    assert {str(ref) for ref in refs[:2]} < set(asked)
    assert len(asked) == 3


def test_rebuilt_claims_come_before_the_others(node: Node) -> None:
    refs = [node.prepared(f"c{number:03}") for number in range(100)]
    rebuilt = refs[80:]
    for _ in range(10):
        node.look()
    node.stale_claims.ask_first(ref.uid for ref in rebuilt)

    asked = node.look()

    assert sorted(asked[:20]) == [str(ref) for ref in rebuilt]
    assert len(asked) == 24
    assert len(node.look()) == 4


def without_record(node: Node, ref: ClaimRef) -> None:
    with node.ledger.transaction() as step:
        step.remove(ref.uid)


def test_a_claim_that_only_files_are_left_of_is_prepared_again_if_it_is_ours(node: Node) -> None:
    ref = node.prepared()
    (before,) = node.ledger.claims()
    spec = node.spec_of(ref)
    without_record(node, ref)

    node.look(ref)

    assert node.ledger.claims() == [before]
    assert node.spec_of(ref) == spec


def test_a_claim_that_only_files_are_left_of_loses_them_once_it_stays_gone(node: Node) -> None:
    ref = node.prepared()
    without_record(node, ref)
    deleted(node.claims, ref)

    for _ in range(10):
        node.look(ref)
    assert node.spec_of(ref) is not None

    for _ in range(2):
        node.look(ref)
    assert node.spec_of(ref) is None
    assert node.projection.claim_uids() == frozenset()
