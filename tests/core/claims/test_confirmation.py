"""Comparison of a claim at the API server with the node's record."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.claims import confirmation
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tests.support.claims import (
    admitted,
    allocated,
    exclusive,
    node_offer,
    prepared,
    share,
    share_id,
)
from tests.support.gpus import cards

NODE = node_offer(*cards(2))
GPU_0, GPU_1 = NODE.devices
POD_A, POD_B, POD_C = (PodRef(namespace="default", name=n, uid=f"uid-{n}") for n in "abc")
RECORD = prepared("a", share(GPU_0, 1), exclusive(GPU_1, request="whole"), on=NODE)


def result(device: str, number: int | None, driver: str = "tensor-fusion.ai.dra-driver") -> Any:
    found = {"request": "gpu", "driver": driver, "pool": "default/node-01", "device": device}
    return found if number is None else {**found, "shareID": share_id(number)}


def stored(*results: Any, uid: str = "uid-a") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "a", "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


WHOLE = stored(result(GPU_0, 1), result(GPU_1, None), result("nic-0", None, driver="other"))


def test_claim_with_the_recorded_allocation_is_not_gone() -> None:
    assert confirmation.reason_gone(RECORD, WHOLE) == ""
    assert confirmation.reason_gone(RECORD.ref, WHOLE) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (stored(result(GPU_0, 1), result(GPU_1, None), uid="uid-b"), "replaced by UID uid-b"),
        ({"metadata": {"uid": "uid-a"}}, "not allocated"),
        ({"metadata": {"uid": "uid-a"}, "status": {"reservedFor": []}}, "not allocated"),
        (stored(result("nic-0", None, driver="other")), "without a device of this driver"),
        (
            stored({**result(GPU_0, 2), "pool": "default/node-02"}),
            "allocated from default/node-02, not on this node",
        ),
    ],
)
def test_claim_without_a_device_of_this_node_is_gone(answer: dict[str, Any], why: str) -> None:
    assert why in confirmation.reason_gone(RECORD, answer)


@pytest.mark.parametrize(
    "answer",
    [
        stored(result(GPU_0, 1)),
        stored(result(GPU_0, 2), result(GPU_1, None)),
        stored({**result(GPU_1, 3), "pool": "renamed/node-01"}),
    ],
)
def test_claim_that_is_reallocated_on_this_node_is_not_gone(answer: dict[str, Any]) -> None:
    """A container may run with the recorded share until the kubelet calls again."""
    assert confirmation.reason_gone(RECORD, answer) == ""


def test_any_device_of_this_driver_counts_for_a_claim_without_a_record() -> None:
    assert confirmation.reason_gone(RECORD.ref, stored(result(GPU_0, 7))) == ""
    other = ClaimRef(namespace="default", name="a", uid="uid-b")
    assert confirmation.reason_gone(other, WHOLE) == "replaced by UID uid-a"


ONE_SHARE = allocated("a", share(GPU_0, 1), pods=(POD_A,))
WHOLE_CARD = allocated("a", exclusive(GPU_0), pods=(POD_A, POD_B))


def record_of(claim: AllocatedClaim) -> PreparedClaim:
    return admitted(claim, on=NODE).claim


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
    assert confirmation.describes(record_of(recorded), now)


@pytest.mark.parametrize(
    ("recorded", "now"),
    [
        (ONE_SHARE, replace(ONE_SHARE, allocations=(share(GPU_0, 2),))),
        (ONE_SHARE, replace(ONE_SHARE, allocations=(share(GPU_1, 1),))),
        (ONE_SHARE, replace(ONE_SHARE, allocations=(share(GPU_0, 1, request="b"),))),
        (ONE_SHARE, replace(ONE_SHARE, allocations=(share(GPU_0, 1), share(GPU_1, 3)))),
        (WHOLE_CARD, replace(WHOLE_CARD, pods=(POD_C,))),
        (replace(WHOLE_CARD, pods=()), WHOLE_CARD),
    ],
)
def test_record_does_not_describe_another_share_device_request_or_pod(
    recorded: AllocatedClaim, now: AllocatedClaim
) -> None:
    assert not confirmation.describes(record_of(recorded), now)


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
        confirmation.reason_gone(RECORD, answer)


@pytest.mark.parametrize("answer", [{}, {"metadata": None}, {"metadata": {"uid": 7}}])
def test_answer_without_a_uid_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(RetryableError, match="without a UID"):
        confirmation.reason_gone(RECORD, answer)
