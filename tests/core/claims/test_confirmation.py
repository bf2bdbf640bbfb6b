"""Comparison of a claim at the API server with the node's record."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.claims import prepared
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import node_facts

NODE = node_facts(*gpus(2))
GPU_0, GPU_1 = NODE.devices
POD_A, POD_B, POD_C = (PodRef(namespace="default", name=n, uid=f"uid-{n}") for n in "abc")
RECORD = claim_record(
    "a", allocation(GPU_0, 1), exclusive_allocation(GPU_1, request="whole"), on=NODE
)


def confirmed_result(
    device: str, number: int | None, driver: str = "tensor-fusion.ai.dra-driver"
) -> Any:
    found = {"request": "gpu", "driver": driver, "pool": "default/node-01", "device": device}
    return found if number is None else {**found, "shareID": share_id(number)}


def fetched_claim(*results: Any, uid: str = "uid-a") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "a", "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


WHOLE = fetched_claim(
    confirmed_result(GPU_0, 1),
    confirmed_result(GPU_1, None),
    confirmed_result("nic-0", None, driver="other"),
)


def test_claim_with_the_recorded_allocation_is_not_gone() -> None:
    assert prepared.reason_gone(RECORD, WHOLE) == ""
    assert prepared.reason_gone(RECORD.ref, WHOLE) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            fetched_claim(confirmed_result(GPU_0, 1), confirmed_result(GPU_1, None), uid="uid-b"),
            "replaced by UID uid-b",
        ),
        ({"metadata": {"uid": "uid-a"}}, "not allocated"),
        ({"metadata": {"uid": "uid-a"}, "status": {"reservedFor": []}}, "not allocated"),
        (
            fetched_claim(confirmed_result("nic-0", None, driver="other")),
            "without a device of this driver",
        ),
        (
            fetched_claim({**confirmed_result(GPU_0, 2), "pool": "default/node-02"}),
            "allocated from default/node-02, not on this node",
        ),
    ],
)
def test_claim_without_a_device_of_this_node_is_gone(answer: dict[str, Any], why: str) -> None:
    assert why in prepared.reason_gone(RECORD, answer)


@pytest.mark.parametrize(
    "answer",
    [
        fetched_claim(confirmed_result(GPU_0, 1)),
        fetched_claim(confirmed_result(GPU_0, 2), confirmed_result(GPU_1, None)),
        fetched_claim({**confirmed_result(GPU_1, 3), "pool": "renamed/node-01"}),
    ],
)
def test_claim_that_is_reallocated_on_this_node_is_not_gone(answer: dict[str, Any]) -> None:
    """A container may run with the recorded share until the kubelet calls again."""
    assert prepared.reason_gone(RECORD, answer) == ""


def test_any_device_of_this_driver_counts_for_a_claim_without_a_record() -> None:
    assert prepared.reason_gone(RECORD.ref, fetched_claim(confirmed_result(GPU_0, 7))) == ""
    other = ClaimRef(namespace="default", name="a", uid="uid-b")
    assert prepared.reason_gone(other, WHOLE) == "replaced by UID uid-a"


ONE_SHARE = allocated_claim("a", allocation(GPU_0, 1), pods=(POD_A,))
WHOLE_CARD = allocated_claim("a", exclusive_allocation(GPU_0), pods=(POD_A, POD_B))


def record_of(claim: AllocatedClaim) -> PreparedClaim:
    return claim_admission(claim, on=NODE).record


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        (ONE_SHARE, ONE_SHARE),
        (ONE_SHARE, replace(ONE_SHARE, pods=(POD_B,))),
        (WHOLE_CARD, replace(WHOLE_CARD, pods=(POD_B,))),
        (replace(WHOLE_CARD, pods=()), replace(WHOLE_CARD, pods=())),
    ],
)
def test_record_describes_an_unchanged_allocation(
    recorded: AllocatedClaim, now: AllocatedClaim
) -> None:
    assert prepared.describes(record_of(recorded), now)


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        (ONE_SHARE, replace(ONE_SHARE, allocations=(allocation(GPU_0, 2),))),
        (ONE_SHARE, replace(ONE_SHARE, allocations=(allocation(GPU_1, 1),))),
        (ONE_SHARE, replace(ONE_SHARE, allocations=(allocation(GPU_0, 1, request="b"),))),
        (ONE_SHARE, replace(ONE_SHARE, allocations=(allocation(GPU_0, 1), allocation(GPU_1, 3)))),
        (WHOLE_CARD, replace(WHOLE_CARD, pods=(POD_C,))),
        (replace(WHOLE_CARD, pods=()), WHOLE_CARD),
    ],
)
def test_record_does_not_describe_another_share_device_request_or_pod(
    recorded: AllocatedClaim, now: AllocatedClaim
) -> None:
    assert not prepared.describes(record_of(recorded), now)


@pytest.mark.parametrize(
    "answer",
    [
        {"metadata": {"uid": "uid-a"}, "status": "allocated"},
        {"metadata": {"uid": "uid-a"}, "status": {"allocation": {"devices": ["gpu-0"]}}},
        {"metadata": {"uid": "uid-a"}, "status": {"allocation": {"devices": {"results": [1]}}}},
        {"metadata": "a"},
    ],
)
def test_malformed_claim_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(RetryableError, match="found a malformed ResourceClaim"):
        prepared.reason_gone(RECORD, answer)


@pytest.mark.parametrize("answer", [{}, {"metadata": None}, {"metadata": {"uid": 7}}])
def test_answer_without_a_uid_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(RetryableError, match="without a UID"):
        prepared.reason_gone(RECORD, answer)
