"""A claim keeps its UID when it is allocated anew; an old record never answers for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver import recent_reads
from tests.support.prepared_node import GPU_0, GPU_1, Setup, error_of, put, share
from tests.support.stored_claims import stored_claim

LIMIT = "tensor-fusion.ai/vram-limit"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Node(Setup):
    """A node whose preparer goes by a clock that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        super().__init__(folder)
        self.preparer = self.with_claims(self.claims, clock=self.clock)

    def prepared(self, ref: ClaimRef) -> PreparedClaim:
        outcome = self.prepare(ref)[ref.uid]
        assert isinstance(outcome, PreparedClaim), outcome
        return outcome

    def reads(self) -> int:
        """How many claims were read since the last look."""
        count = len(self.claims.fetched)
        self.claims.fetched.clear()
        return count


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    setup = Node(tmp_path)
    yield setup
    setup.ledger.close()


def reallocated(node: Setup, ref: ClaimRef, *results: Any, pod: str = "other") -> None:
    """The scheduler gives the same claim to another pod."""
    claim = stored_claim(ref.name, *results, uid=ref.uid)
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"}]
    node.claims.put(claim)


def pods_of(record: PreparedClaim) -> list[str]:
    return [pod.name for pod in record.pods]


def document_of(node: Setup, ref: ClaimRef) -> Any:
    return json.loads((node.limits_folder / f"{ref.uid}.json").read_text())


def test_a_claim_allocated_anew_while_the_kubelet_was_away_gets_its_new_card_share_and_pod(
    node: Node,
) -> None:
    ref = put(node, "a", share(GPU_0))
    node.prepare(ref)
    new = share(GPU_1, vram="8Gi")
    reallocated(node, ref, new)
    node.preparer.forget_recent_reads()

    with capture_logs() as logs:
        record = node.prepared(ref)

    assert [(s.device, s.share_id) for s in record.shares] == [(GPU_1, new["shareID"])]
    assert pods_of(record) == ["other"]
    assert document_of(node, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]
    assert new["shareID"] in str(node.spec_of(ref))
    assert GPU_0 not in str(node.spec_of(ref))
    assert node.ledger.claims() == [record]
    assert "claim_reallocated" in [line["event"] for line in logs]


def test_a_new_process_answers_no_record_of_an_earlier_allocation(node: Node) -> None:
    ref = put(node, "a", share(GPU_0))
    node.prepare(ref)
    reallocated(node, ref, share(GPU_1))

    after = node.restarted()
    outcome = after.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim)
    assert [held.device for held in outcome.shares] == [GPU_1]
    after.ledger.close()


def test_the_share_of_the_earlier_allocation_is_free_and_others_get_what_it_left(
    node: Node,
) -> None:
    ref = put(node, "a", share(GPU_0, vram="60Gi"))
    beside = stored_claim("beside", share(GPU_0, vram="20Gi"))
    beside["metadata"]["annotations"] = {LIMIT: "80Gi"}
    other = node.claims.put(beside)
    node.prepare(ref, other)
    reallocated(node, ref, share(GPU_1))
    node.preparer.forget_recent_reads()

    node.prepared(ref)

    (limits,) = [each["limits"] for each in document_of(node, other)["shares"]]
    assert limits["vramBytes"] == 80 * 2**30
    third = put(node, "third", share(GPU_0, tflops="100", vram="60Gi"))
    node.prepared(third)


def test_an_earlier_share_does_not_come_back_if_the_new_one_does_not_fit(node: Node) -> None:
    ref = put(node, "a", share(GPU_0))
    node.prepare(ref)
    node.prepared(put(node, "whole", share(GPU_1, tflops="312", vram="80Gi")))
    reallocated(node, ref, share(GPU_1))
    node.preparer.forget_recent_reads()

    text = error_of(node.prepare(ref)[ref.uid])

    assert "in use, expected at most 312" in text
    assert node.ledger.get(ref.uid) is None
    assert node.spec_of(ref) is None


def test_a_device_given_alone_to_the_next_pod_is_prepared_for_that_pod(node: Node) -> None:
    whole = {**share(GPU_0), "shareID": None, "consumedCapacity": None}
    ref = put(node, "a", whole)
    node.prepare(ref)
    reallocated(node, ref, whole)
    node.preparer.forget_recent_reads()

    assert pods_of(node.prepared(ref)) == ["other"]


def test_a_claim_whose_first_pod_has_gone_is_prepared_for_those_that_share_it(node: Node) -> None:
    results = [share(GPU_0)]
    ref = put(node, "a", *results)
    first = node.prepared(ref)
    reallocated(node, ref, *results)
    node.preparer.forget_recent_reads()

    record = node.prepared(ref)

    assert record.shares == first.shares
    assert record.sequence == first.sequence
    assert record.pods == (PodRef(namespace="default", name="other", uid="uid-of-other"),)
    assert document_of(node, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]


def test_a_repeated_call_while_the_pod_starts_reads_no_claim(node: Node) -> None:
    ref = put(node, "a", share())
    node.prepare(ref)
    assert node.reads() == 1

    for _ in range(3):
        node.clock.now += 90
        node.prepared(ref)

    assert node.reads() == 0


def test_after_a_restart_of_the_kubelet_one_read_is_enough(node: Node) -> None:
    ref = put(node, "a", share())
    before = node.prepared(ref)
    node.reads()
    node.preparer.forget_recent_reads()

    assert [node.prepared(ref) for _ in range(3)] == [before] * 3

    assert node.reads() == 1


def test_after_the_time_limit_the_claim_is_read_again(node: Node) -> None:
    ref = put(node, "a", share())
    node.prepared(ref)
    node.reads()
    node.clock.now += recent_reads.SECONDS

    node.prepared(ref)
    node.prepared(ref)

    assert node.reads() == 1


def test_a_read_that_ran_while_the_kubelet_restarted_does_not_count(node: Node) -> None:
    ref = put(node, "a", share())
    fetch = node.claims.fetch

    def interrupted(ref: ClaimRef, *, wait_seconds: float) -> Any:
        found = fetch(ref, wait_seconds=wait_seconds)
        node.preparer.forget_recent_reads()
        return found

    node.claims.fetch = interrupted  # type: ignore[method-assign]
    node.prepared(ref)
    node.claims.fetch = fetch  # type: ignore[method-assign]
    node.reads()

    node.prepared(ref)

    assert node.reads() == 1


def test_an_unprepared_claim_is_read_before_it_is_prepared_again(node: Node) -> None:
    ref = put(node, "a", share(GPU_0))
    node.prepared(ref)
    node.unprepare(ref)
    reallocated(node, ref, share(GPU_1))

    assert [held.device for held in node.prepared(ref).shares] == [GPU_1]


@pytest.mark.parametrize("status", [{}, {"allocation": None, "reservedFor": []}])
def test_a_claim_that_is_not_allocated_any_more_gets_no_answer_and_keeps_its_record(
    node: Node, status: dict[str, Any]
) -> None:
    ref = put(node, "a", share())
    record = node.prepared(ref)
    node.claims.put({**stored_claim("a", uid=ref.uid), "status": status})
    node.preparer.forget_recent_reads()

    assert "found no allocation" in error_of(node.prepare(ref)[ref.uid])
    assert node.ledger.get(ref.uid) == record


def test_without_an_answer_of_the_api_server_a_record_that_may_be_old_waits(node: Node) -> None:
    ref = put(node, "a", share())
    record = node.prepared(ref)
    spec = node.spec_of(ref)
    node.preparer.forget_recent_reads()
    node.claims.away = True

    text = error_of(node.prepare(ref)[ref.uid])
    node.claims.away = False

    assert "no answer" in text
    assert node.spec_of(ref) == spec
    assert node.prepared(ref) == record


def test_many_claims_are_remembered_and_old_reads_are_dropped(node: Node) -> None:
    reads = recent_reads.RecentReads(clock=node.clock)
    for number in range(5000):
        node.clock.now = number / 10
        reads.note(f"uid-{number}", reads.begin())

    assert reads.covers("uid-4999")
    assert not reads.covers("uid-0")
