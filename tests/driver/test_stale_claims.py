"""Release of claims that the kubelet forgot, but of none that may still be in use."""

import copy
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tests.support.logs import capture_logs
from tests.support.ports import OneNode
from tests.support.prepared_node import GPU_1, Setup, put_claim, share_result

GONE_SECONDS = 600.0
HOUR = 3600.0
NEVER = 1e12


class Node(Setup):
    """A node with a round each minute, in which it checks all claims unless told otherwise.

    Attributes:
        unreadable: Claims that are answered with invalid JSON.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.readiness = OneNode()
        self.unreadable: Sequence[ClaimRef] = ()
        self.now = 0.0
        self.check_every(60)

    def check_every(self, seconds: float) -> None:
        """Begin with a new process that checks each claim once in this time."""
        self.stale_claims = StaleClaimCollector(
            self,
            self.readiness,
            self.preparer,
            gone_seconds=GONE_SECONDS,
            check_seconds=seconds,
            clock=lambda: self.now,
        )

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        found = self.claims.fetch(ref, wait_seconds=wait_seconds)
        if ref in self.unreadable:
            raise RetryableError(f"claim {ref}: found no JSON")
        return found

    def run_round(self, *unknown: ClaimRef) -> list[str]:
        """Run one round of the check a minute later; return the claims that were fetched.

        A round ends early, as in the reconciler, if too much cannot be read.
        """
        self.now += 60
        self.claims.fetched.clear()
        with suppress(RetryableError):
            self.stale_claims.collect([*self.store.claims(), *unknown])
        return list(self.claims.fetched)

    def run_rounds_for(self, seconds: float, *unknown: ClaimRef) -> list[str]:
        """Run a round each minute for some time; return the claims that were fetched."""
        return [name for _ in range(int(seconds / 60)) for name in self.run_round(*unknown)]

    def prepare_new(self, name: str = "a") -> ClaimRef:
        return self.prepared(put_claim(self, name, share_result(tflops="0.1", vram="1Mi"))).ref

    def prepare_several(self, number: int) -> list[ClaimRef]:
        return [self.prepare_new(f"c{index:03}") for index in range(number)]

    def change(self, ref: ClaimRef) -> Any:
        """Return a copy of the stored claim, which the API server has from now on."""
        self.claims.stored[str(ref)] = copy.deepcopy(self.claims.stored[str(ref)])
        return self.claims.stored[str(ref)]

    def allocation(self, ref: ClaimRef) -> Any:
        return self.change(ref)["status"]["allocation"]["devices"]["results"][0]

    def delete(self, *refs: ClaimRef) -> None:
        """Delete claims at the API server."""
        for ref in refs:
            del self.claims.stored[str(ref)]

    def recorded_names(self) -> list[str]:
        return sorted(claim.ref.name for claim in self.store.claims())

    def remove_record(self, ref: ClaimRef) -> None:
        with self.store.transaction() as transaction:
            transaction.remove(ref.uid)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    "remove",
    [
        Node.delete,
        lambda node, ref: node.change(ref)["metadata"].update(uid="uid-of-another"),
        lambda node, ref: node.change(ref).update(status={}),
        lambda node, ref: node.allocation(ref).update(pool="default/node-02"),
    ],
    ids=["deleted", "replaced", "deallocated", "on another node"],
)
def test_claim_that_stays_gone_is_released_with_all_its_files(
    node: Node, remove: Callable[[Node, ClaimRef], None]
) -> None:
    ref, _ = (node.prepare_new(name) for name in "ab")
    remove(node, ref)

    node.run_rounds_for(GONE_SECONDS)
    assert node.recorded_names() == ["a", "b"]
    with capture_logs() as logs:
        node.run_rounds_for(120)

    assert node.recorded_names() == ["b"]
    assert node.spec_of(ref) is None
    assert [each["claim_uid"] for each in logs if each["event"] == "claim_released"] == [ref.uid]


def test_claim_that_exists_again_restarts_the_gone_time(node: Node) -> None:
    ref = node.prepare_new()
    stored = node.claims.stored[str(ref)]
    for _ in range(2):
        node.claims.put(stored)
        node.run_round()
        node.delete(ref)
        node.run_rounds_for(GONE_SECONDS)

    assert node.recorded_names() == ["a"]


def test_unanswered_reads_release_nothing(node: Node) -> None:
    node.delete(node.prepare_new())
    node.run_rounds_for(GONE_SECONDS)
    node.claims.away = True

    node.run_rounds_for(180)

    with pytest.raises(RetryableError, match="no answer"):
        node.stale_claims.collect(node.store.claims())
    assert node.recorded_names() == ["a"]


def test_time_while_the_node_is_not_ready_does_not_count(node: Node) -> None:
    """The kubelet may be down while the containers of a force-deleted pod still run."""
    node.delete(node.prepare_new())
    recorded = []
    for is_ready, seconds in (
        *((True, GONE_SECONDS), (False, GONE_SECONDS * 10)),
        *((True, GONE_SECONDS), (True, 120)),
    ):
        node.readiness.ready = is_ready
        node.run_rounds_for(seconds)
        recorded.append(node.recorded_names())

    assert recorded == [["a"], ["a"], ["a"], []]


def test_claim_reallocated_just_before_its_release_is_kept(node: Node) -> None:
    ref = node.prepare_new()
    before = node.store.claims()

    assert not node.preparer.release(ref, lambda: False, deadline=node.now + 1e9)

    assert node.store.claims() == before


def test_claim_reallocated_on_this_node_is_never_released(node: Node) -> None:
    """The kubelet may have given the recorded share to the next pod without a call."""
    ref = node.prepare_new()
    node.allocation(ref).update(device=GPU_1, shareID=str(uuid.uuid4()))

    node.run_rounds_for(GONE_SECONDS * 3)

    assert node.recorded_names() == ["a"]
    assert node.spec_of(ref) is not None


def test_allocated_claim_with_files_but_no_record_is_prepared_again(node: Node) -> None:
    ref = node.prepare_new()
    before = node.store.claims(), node.files()
    node.remove_record(ref)

    node.run_round(ref)

    assert (node.store.claims(), node.files()) == before


def test_files_without_a_record_are_removed_once_their_claim_stays_gone(node: Node) -> None:
    ref = node.prepare_new()
    node.remove_record(ref)
    node.delete(ref)

    node.run_rounds_for(GONE_SECONDS, ref)
    assert node.spec_of(ref) is not None

    node.run_rounds_for(120, ref)
    assert node.files() == {}


def test_unreadable_and_malformed_claims_do_not_prevent_the_release_of_others(node: Node) -> None:
    gone, malformed, *node.unreadable = node.prepare_several(4)
    node.change(malformed).update(status="allocated")
    node.delete(gone)
    node.stale_claims.check_soon()

    node.run_rounds_for(1800)

    assert node.recorded_names() == ["c001", "c002", "c003"]


def test_round_ends_after_several_unreadable_claims_and_later_rounds_fetch_the_rest(
    node: Node,
) -> None:
    refs = node.prepare_several(10)
    node.unreadable = refs[2:]

    rounds = [{*node.run_round()} for _ in range(15)]

    assert max(len(names - {str(ref) for ref in refs[:2]}) for names in rounds) == 3
    assert set().union(*rounds) == {str(ref) for ref in refs}


def test_hundred_claims_are_fetched_once_in_six_hours_and_evenly_over_that_time(
    node: Node,
) -> None:
    names = {str(ref) for ref in node.prepare_several(100)}
    node.check_every(6 * HOUR)

    hours = [node.run_rounds_for(HOUR) for _ in range(25)]

    # A claim waits for the round after its time, which may be in the next part.
    for start in (0, 6, 12, 18):
        assert 90 <= len({name for hour in hours[start : start + 6] for name in hour}) <= 100
    assert {name for hour in hours[:7] for name in hour} == names
    assert max(map(len, hours)) <= 50  # 17 in an hour are expected


def test_refused_claim_has_all_others_fetched_within_the_next_rounds(node: Node) -> None:
    refs = node.prepare_several(25)
    node.check_every(NEVER)
    assert node.run_round() == []

    node.stale_claims.check_soon()
    rounds = [node.run_round() for _ in range(3)]
    node.stale_claims.check_soon()

    assert [len(fetched) for fetched in rounds] == [10, 10, 5]
    assert sorted(name for fetched in rounds for name in fetched) == [str(ref) for ref in refs]
    assert node.run_round() == []


def test_stale_claim_that_takes_the_room_of_another_is_released(node: Node) -> None:
    node.check_every(NEVER)
    node.delete(node.prepared(put_claim(node, "stale", share_result(vram="60Gi"))).ref)
    assert node.run_rounds_for(HOUR) == []
    waiting = put_claim(node, "waiting", share_result(vram="40Gi"))

    assert "40Gi plus 60Gi in use" in node.refused(waiting)
    node.run_rounds_for(GONE_SECONDS + 120)
    node.prepared(waiting)


def test_claims_that_seem_gone_are_fetched_in_every_round(node: Node) -> None:
    gone = node.prepare_several(4)[:2]
    node.check_every(NEVER)
    node.delete(*gone)
    node.run_round()
    node.stale_claims.check_soon()
    node.run_round()

    assert [sorted(node.run_round()) for _ in range(5)] == [[str(ref) for ref in gone]] * 5
