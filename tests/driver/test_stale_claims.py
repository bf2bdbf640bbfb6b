"""Release of claims that the kubelet forgot, but of none that may still be in use."""

import copy
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tests.support.ports import ClaimsInMemory, OneNode
from tests.support.prepared_node import GPU_1, Setup, put_claim, share_result

GONE_SECONDS = 600.0
HOUR = 3600.0


class PartlyUnreadableClaims(ClaimsInMemory):
    """Claims of which some are answered with invalid JSON, by UID."""

    unreadable: frozenset[str] = frozenset()

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Any:
        found = super().fetch(ref, wait_seconds=wait_seconds)
        if ref.uid in self.unreadable:
            raise RetryableError(f"claim {ref}: found no JSON")
        return found


class Node(Setup):
    """A node with a round each minute, in which it checks all claims unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.claims_at_server = PartlyUnreadableClaims()
        super().__init__(folder, self.claims_at_server)
        self.readiness = OneNode()
        self.now = 0.0
        self.check_every(60)

    def check_every(self, seconds: float) -> None:
        """Begin with a new process that checks each claim once in this time."""
        self.stale_claims = StaleClaimCollector(
            self.claims,
            self.readiness,
            self.preparer,
            gone_seconds=GONE_SECONDS,
            check_seconds=seconds,
            clock=lambda: self.now,
        )

    def run_round(self, *unknown: ClaimRef) -> list[str]:
        """Run one round of the check a minute later; return the claims that were fetched."""
        self.now += 60
        self.claims.fetched.clear()
        self.stale_claims.collect([*self.store.claims(), *unknown])
        return list(self.claims.fetched)

    def run_rounds_for(self, seconds: float) -> list[str]:
        """Run a round each minute for some time; return the claims that were fetched."""
        return [name for _ in range(int(seconds / 60)) for name in self.run_round()]

    def try_rounds(self, number: int) -> None:
        """Run rounds, whatever cannot be read in them."""
        for _ in range(number):
            with suppress(RetryableError):
                self.run_round()

    def prepare_new(self, name: str = "a", **more: Any) -> ClaimRef:
        ref = put_claim(self, name, share_result(tflops="0.1", vram="1Mi", **more))
        self.prepared(ref)
        return ref

    def prepare_several(self, number: int) -> list[ClaimRef]:
        return [self.prepare_new(f"c{index:03}") for index in range(number)]

    def change(self, ref: ClaimRef) -> Any:
        """Return a copy of the stored claim, which the API server has from now on."""
        self.claims.stored[str(ref)] = copy.deepcopy(self.claims.stored[str(ref)])
        return self.claims.stored[str(ref)]

    def allocation(self, ref: ClaimRef) -> Any:
        return self.change(ref)["status"]["allocation"]["devices"]["results"][0]

    def recorded_names(self) -> list[str]:
        return sorted(claim.ref.name for claim in self.store.claims())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def idle(node: Node) -> Node:
    """A node that does not look its claims up unless there is a reason."""
    node.check_every(1e12)
    return node


def delete_claim(node: Node, ref: ClaimRef) -> None:
    del node.claims.stored[str(ref)]


@pytest.mark.parametrize(
    "remove",
    [
        delete_claim,
        lambda node, ref: node.change(ref)["metadata"].update(uid="uid-of-another"),
        lambda node, ref: node.change(ref).update(status={}),
        lambda node, ref: node.allocation(ref).update(pool="default/node-02"),
    ],
    ids=["deleted", "replaced", "deallocated", "on another node"],
)
def test_claim_that_stays_gone_is_released_with_all_its_files(
    node: Node, remove: Callable[[Node, ClaimRef], None]
) -> None:
    ref = node.prepare_new("a")
    node.prepare_new("b")
    remove(node, ref)

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
    delete_claim(node, ref)
    node.run_rounds_for(GONE_SECONDS)

    node.claims.put(stored)
    node.run_round()
    delete_claim(node, ref)
    node.run_rounds_for(GONE_SECONDS)

    assert node.recorded_names() == ["a"]


def test_unanswered_reads_release_nothing(node: Node) -> None:
    delete_claim(node, node.prepare_new())
    node.run_rounds_for(GONE_SECONDS)
    node.claims.away = True

    for _ in range(3):
        with pytest.raises(RetryableError):
            node.run_round()

    assert node.recorded_names() == ["a"]


def test_time_while_the_node_is_not_ready_does_not_count(node: Node) -> None:
    """The kubelet may be down while the containers of a force-deleted pod still run."""
    delete_claim(node, node.prepare_new())
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


def remove_record(node: Node, ref: ClaimRef) -> None:
    with node.store.transaction() as transaction:
        transaction.remove(ref.uid)


def test_allocated_claim_with_files_but_no_record_is_prepared_again(node: Node) -> None:
    ref = node.prepare_new()
    (before,) = node.store.claims()
    spec = node.spec_of(ref)
    remove_record(node, ref)

    node.run_round(ref)

    assert node.store.claims() == [before]
    assert node.spec_of(ref) == spec


def test_files_without_a_record_are_removed_once_their_claim_stays_gone(node: Node) -> None:
    ref = node.prepare_new()
    remove_record(node, ref)
    delete_claim(node, ref)

    for _ in range(10):
        node.run_round(ref)
    assert node.spec_of(ref) is not None

    for _ in range(2):
        node.run_round(ref)
    assert node.spec_of(ref) is None
    assert node.node_files.claim_uids() == frozenset()


def test_unreadable_and_malformed_claims_do_not_prevent_the_release_of_others(node: Node) -> None:
    gone, malformed, *unreadable = node.prepare_several(4)
    node.claims_at_server.unreadable = frozenset(ref.uid for ref in unreadable)
    node.change(malformed).update(status="allocated")
    delete_claim(node, gone)
    node.stale_claims.check_soon()

    node.try_rounds(30)

    assert node.recorded_names() == ["c001", "c002", "c003"]


def test_round_ends_after_several_unreadable_claims_and_later_rounds_fetch_the_rest(
    node: Node,
) -> None:
    refs = node.prepare_several(10)
    node.claims_at_server.unreadable = frozenset(ref.uid for ref in refs[2:])
    fetched: set[str] = set()

    for _ in range(15):
        node.try_rounds(1)
        assert len({*node.claims.fetched} - {str(ref) for ref in refs[:2]}) <= 3
        fetched |= {*node.claims.fetched}

    assert fetched == {str(ref) for ref in refs}


def test_hundred_claims_are_fetched_once_in_six_hours_and_evenly_over_that_time(
    node: Node,
) -> None:
    names = [str(ref) for ref in node.prepare_several(100)]
    node.check_every(6 * HOUR)
    recorded = node.store.claims()

    hours = [fetched_in_an_hour(node, recorded) for _ in range(25)]

    # A claim waits for the round after its time, which may be in the next part.
    for start in (0, 6, 12, 18):
        assert 90 <= len({name for hour in hours[start : start + 6] for name in hour}) <= 100
    assert {name for hour in hours[:7] for name in hour} == {*names}
    assert max(map(len, hours)) <= 50  # 17 in an hour are expected


def fetched_in_an_hour(node: Node, recorded: Sequence[PreparedClaim]) -> list[str]:
    node.claims.fetched.clear()
    for _ in range(60):
        node.now += 60
        node.stale_claims.collect(recorded)
    return list(node.claims.fetched)


def test_refused_claim_has_all_others_fetched_within_the_next_rounds(idle: Node) -> None:
    refs = idle.prepare_several(25)
    assert idle.run_round() == []

    idle.stale_claims.check_soon()
    rounds = [idle.run_round() for _ in range(3)]
    idle.stale_claims.check_soon()

    assert [len(fetched) for fetched in rounds] == [10, 10, 5]
    assert sorted(name for fetched in rounds for name in fetched) == [str(ref) for ref in refs]
    assert idle.run_round() == []


def test_stale_claim_that_takes_the_room_of_another_is_released(idle: Node) -> None:
    stale = put_claim(idle, "stale", share_result(vram="60Gi"))
    idle.prepare(stale)
    delete_claim(idle, stale)
    assert idle.run_rounds_for(HOUR) == []
    waiting = put_claim(idle, "waiting", share_result(vram="40Gi"))

    assert "40Gi plus 60Gi in use" in idle.refused(waiting)
    idle.run_rounds_for(GONE_SECONDS + 120)
    idle.prepared(waiting)


def test_claims_that_seem_gone_are_fetched_in_every_round(idle: Node) -> None:
    refs = idle.prepare_several(4)
    for ref in refs[:2]:
        delete_claim(idle, ref)
    idle.run_round()
    idle.stale_claims.check_soon()
    idle.run_round()

    rounds = [sorted(idle.run_round()) for _ in range(5)]

    assert rounds == [[str(ref) for ref in refs[:2]]] * 5
