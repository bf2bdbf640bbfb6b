"""Reallocated claims keep their UID, but the record of an earlier allocation is never returned."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import GPU_0, GPU_1, Setup, error_of, put_claim, share_result

LIMIT = "tensor-fusion.ai/vram-limit"


class Node(Setup):
    """A node that prepares one claim at a time."""

    def prepare_one(self, ref: ClaimRef) -> PreparedClaim:
        outcome = self.prepare(ref)[ref.uid]
        assert isinstance(outcome, PreparedClaim), outcome
        return outcome


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    setup = Node(tmp_path)
    yield setup
    setup.ledger.close()


def reallocate(node: Setup, ref: ClaimRef, *results: Any, pod: str = "other") -> None:
    """Allocate the same claim for another pod, as the scheduler does."""
    claim = stored_claim(ref.name, *results, uid=ref.uid)
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"}]
    node.claims.put(claim)


def pods_of(record: PreparedClaim) -> list[str]:
    return [pod.name for pod in record.pods]


def limits_document(node: Setup, ref: ClaimRef) -> Any:
    return json.loads((node.limits_folder / f"{ref.uid}.json").read_text())


def test_reallocated_claim_gets_its_new_card_share_and_pod(
    node: Node,
) -> None:
    ref = put_claim(node, "a", share_result(GPU_0))
    node.prepare(ref)
    new = share_result(GPU_1, vram="8Gi")
    reallocate(node, ref, new)

    with capture_logs() as logs:
        record = node.prepare_one(ref)

    assert [(s.device, s.share_id) for s in record.shares] == [(GPU_1, new["shareID"])]
    assert pods_of(record) == ["other"]
    assert limits_document(node, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]
    assert new["shareID"] in str(node.spec_of(ref))
    assert GPU_0 not in str(node.spec_of(ref))
    assert node.ledger.claims() == [record]
    assert "claim_reallocated" in [line["event"] for line in logs]


def test_share_of_the_earlier_allocation_is_released_and_lent(
    node: Node,
) -> None:
    ref = put_claim(node, "a", share_result(GPU_0, vram="60Gi"))
    beside = stored_claim("beside", share_result(GPU_0, vram="20Gi"))
    beside["metadata"]["annotations"] = {LIMIT: "80Gi"}
    other = node.claims.put(beside)
    node.prepare(ref, other)
    reallocate(node, ref, share_result(GPU_1))

    node.prepare_one(ref)

    (limits,) = [each["limits"] for each in limits_document(node, other)["shares"]]
    assert limits["vramBytes"] == 80 * 2**30
    third = put_claim(node, "third", share_result(GPU_0, tflops="100", vram="60Gi"))
    node.prepare_one(third)


def test_earlier_share_is_not_restored_if_the_new_one_does_not_fit(node: Node) -> None:
    ref = put_claim(node, "a", share_result(GPU_0))
    node.prepare(ref)
    node.prepare_one(put_claim(node, "whole", share_result(GPU_1, tflops="312", vram="80Gi")))
    reallocate(node, ref, share_result(GPU_1))

    text = error_of(node.prepare(ref)[ref.uid])

    assert "in use, expected at most 312" in text
    assert node.ledger.get(ref.uid) is None
    assert node.spec_of(ref) is None


def test_shared_claim_is_prepared_for_its_remaining_pods(node: Node) -> None:
    results = [share_result(GPU_0)]
    ref = put_claim(node, "a", *results)
    first = node.prepare_one(ref)
    reallocate(node, ref, *results)

    record = node.prepare_one(ref)

    assert record.shares == first.shares
    assert record.sequence == first.sequence
    assert record.pods == (PodRef(namespace="default", name="other", uid="uid-of-other"),)
    assert limits_document(node, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]


@pytest.mark.parametrize("status", [{}, {"allocation": None, "reservedFor": []}])
def test_deallocated_claim_fails_and_keeps_its_record(node: Node, status: dict[str, Any]) -> None:
    ref = put_claim(node, "a", share_result())
    record = node.prepare_one(ref)
    node.claims.put({**stored_claim("a", uid=ref.uid), "status": status})

    assert "found no allocation" in error_of(node.prepare(ref)[ref.uid])
    assert node.ledger.get(ref.uid) == record


def test_record_that_may_be_outdated_is_not_returned_without_the_api_server(node: Node) -> None:
    ref = put_claim(node, "a", share_result())
    record = node.prepare_one(ref)
    spec = node.spec_of(ref)
    node.claims.away = True

    text = error_of(node.prepare(ref)[ref.uid])
    node.claims.away = False

    assert "no answer" in text
    assert node.spec_of(ref) == spec
    assert node.prepare_one(ref) == record
