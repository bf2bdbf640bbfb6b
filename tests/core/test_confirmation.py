"""What the API server says of a claim, against what the node has recorded."""

from typing import Any

import pytest

from tensorfusion_dra.core import confirmation
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tests.support.claims import alone, local, prepared, share, share_id
from tests.support.gpus import cards

NODE = local(*cards(2))
GPU_0, GPU_1 = NODE.devices
RECORD = prepared("a", share(GPU_0, 1), alone(GPU_1, request="whole"), on=NODE)


def result(device: str, number: int | None, driver: str = "tensor-fusion.ai.dra-driver") -> Any:
    found = {"request": "gpu", "driver": driver, "pool": "default/node-01", "device": device}
    return found if number is None else {**found, "shareID": share_id(number)}


def stored(*results: Any, uid: str = "uid-a") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "a", "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


WHOLE = stored(result(GPU_0, 1), result(GPU_1, None), result("nic-0", None, driver="other"))


def test_a_claim_that_has_what_is_recorded_holds_it() -> None:
    assert confirmation.why_gone(RECORD, WHOLE) == ""
    assert confirmation.why_gone(RECORD.ref, WHOLE) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (stored(result(GPU_0, 1), result(GPU_1, None), uid="uid-b"), "replaced by UID uid-b"),
        ({"metadata": {"uid": "uid-a"}}, "not allocated"),
        ({"metadata": {"uid": "uid-a"}, "status": {"reservedFor": []}}, "not allocated"),
        (stored(result("nic-0", None, driver="other")), "without a device of this driver"),
        (stored(result(GPU_0, 1)), f"without its share of {GPU_1}"),
        (stored(result(GPU_0, 2), result(GPU_1, None)), f"without its share of {GPU_0}"),
    ],
)
def test_a_claim_that_lost_something_of_it_is_gone(answer: dict[str, Any], why: str) -> None:
    assert why in confirmation.why_gone(RECORD, answer)


def test_of_a_claim_without_a_record_any_device_of_ours_counts() -> None:
    assert confirmation.why_gone(RECORD.ref, stored(result(GPU_0, 7))) == ""
    other = ClaimRef(namespace="default", name="a", uid="uid-b")
    assert confirmation.why_gone(other, WHOLE) == "replaced by UID uid-a"


@pytest.mark.parametrize("answer", [{}, {"metadata": None}, {"metadata": {"uid": 7}}])
def test_an_answer_that_is_no_claim_says_nothing(answer: dict[str, Any]) -> None:
    with pytest.raises(RetryableError, match="without a UID"):
        confirmation.why_gone(RECORD, answer)
