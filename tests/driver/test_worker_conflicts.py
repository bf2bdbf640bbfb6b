"""Registrations with Tensor Fusion's hypervisor that fail, and what they leave behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import GPU_0, GPU_1, error_of, share_result
from tests.support.worker_node import PREFIX, WorkerNode, worker_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkerNode]:
    with worker_node(tmp_path) as found:
        yield found


def test_claim_of_several_pods_is_refused(node: WorkerNode) -> None:
    claim = stored_claim("train", share_result())
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "b", "uid": "uid-of-b"})

    outcome = node.prepare(node.setup.claims.put(claim))

    assert error_of(outcome) == (
        "claim default/train: pods: found default/train, default/b, expected exactly one, as "
        "Tensor Fusion's hypervisor keeps limits by pod"
    )


def test_card_that_the_hypervisor_does_not_know_is_refused(node: WorkerNode) -> None:
    node.hypervisor.cards.remove(GPU_1)
    node.pods.put("train")

    outcome = node.prepare(node.put("train", share_result(GPU_1)))

    assert error_of(outcome) == (
        f"pod default/train: cards: found none allocated by the hypervisor, expected {GPU_1}"
    )
    assert node.pods.labels("train") == node.pods.annotations("train") == {}


def answer(*cards: str) -> bytes:
    """Return an answer with a response for each of these lists of cards."""
    envs = [{"NVIDIA_VISIBLE_DEVICES": text} for text in cards]
    responses = [pb.ContainerAllocateResponse(envs=each) for each in envs]
    return pb.AllocateResponse(container_responses=responses).SerializeToString()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(), "found 0 container responses, expected 1"),
        (answer(GPU_0, GPU_0), "found 2 container responses, expected 1"),
        (answer(""), "found none allocated"),
        (answer("\x1b[2J\n" + "x" * 9_000), r"found \x1b[2j\nxxx"),
        (answer(GPU_0).replace(b"gpu-", b"\xff\xff\xff\xff"), "Exception deserializing response"),
        (b"\xff", "Exception deserializing response"),
        (answer("x" * 5_000_000), "message larger than max"),
    ],
    ids=["none", "two", "empty", "long", "not text", "no message", "too long"],
)
def test_answer_of_any_form_fails_one_claim_and_no_process(
    node: WorkerNode, given: bytes, expected: str
) -> None:
    node.hypervisor.answer = given
    node.pods.put("train")
    ref = node.put("train")
    keeper = node.keeper

    error = error_of(node.prepare(ref))
    for _ in range(2):
        keeper.repair(node.workers)

    assert expected in error
    assert len(error) < 1_000
    assert node.pods.labels("train") == node.pods.annotations("train") == {}
    node.hypervisor.answer = None
    assert isinstance(node.prepare(ref), PreparedClaim)


@pytest.mark.parametrize("index", ["9" * 5_000, "-1", "0x7f", "\u0661", "1.5", "", "²"])
def test_index_of_any_form_in_another_pod_fails_no_claim(node: WorkerNode, index: str) -> None:
    node.pods.put("other")
    metadata = node.pods.stored["other"]["metadata"]
    metadata["labels"][PREFIX + "component"] = "worker"
    metadata["annotations"][PREFIX + "index"] = index
    node.pods.put("train")

    assert isinstance(node.prepare(node.put("train")), PreparedClaim)


def test_without_a_hypervisor_marks_are_withdrawn_until_it_serves(
    node: WorkerNode,
) -> None:
    pod = node.pods.put("train")
    node.hypervisor.stop()
    ref = node.put("train")

    outcome = node.prepare(ref)

    assert "expected it to serve on this node" in error_of(outcome)
    assert node.pods.patches == []

    node.hypervisor.start()
    assert isinstance(node.prepare(ref), PreparedClaim)
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 16 * GIB)}


def test_pod_that_the_hypervisor_does_not_see_fails_the_claim_soon(
    node: WorkerNode,
) -> None:
    node.pods.put("train", phase="Unknown")

    outcome = node.prepare(node.put("train"), seconds=2)

    assert "expected the hypervisor to see the pod with this index" in error_of(outcome)
    assert node.pods.labels("train") == {}


@pytest.mark.parametrize("forged", [{}, {PREFIX + "dra-marks": "gpu-ids,index"}], ids=str)
def test_card_of_a_pod_of_tensor_fusions_scheduler_is_refused(
    node: WorkerNode, forged: dict[str, str]
) -> None:
    node.pods.put("train")
    node.pods.put("other")
    node.pods.stored["other"]["metadata"] |= {
        "labels": {PREFIX + "component": "worker"},
        "annotations": {PREFIX + "gpu-ids": f"gpu-x, {GPU_0}", **forged},
    }
    ref = node.put("train")

    outcome = node.prepare(ref)

    assert error_of(outcome) == (
        f"pod default/train: {GPU_0}: found in use by pod default/other of Tensor Fusion's "
        f"scheduler, expected a card that it does not hand out"
    )
    assert node.pods.patches == []

    node.pods.set_phase("other", "Failed")
    assert isinstance(node.prepare(ref), PreparedClaim)


def test_pod_that_got_cards_from_tensor_fusions_scheduler_is_refused(node: WorkerNode) -> None:
    node.pods.put("train")
    node.pods.stored["train"]["metadata"]["annotations"] = {PREFIX + "gpu-ids": GPU_1}

    assert "expected none in a pod with a claim" in error_of(node.prepare(node.put("train")))
    assert node.pods.patches == []


def test_index_of_a_pod_of_tensor_fusions_webhook_is_left_to_it(node: WorkerNode) -> None:
    node.pods.put("train")
    limits = {"tensor-fusion.ai/index_f": "8", "tensor-fusion.ai/index_other": "1"}
    node.pods.put("other", spec={"containers": [{"resources": {"limits": limits}}]})
    node.pods.stored["other"]["metadata"]["labels"] = {PREFIX + "component": "worker"}

    node.prepare(node.put("train"))

    assert node.hypervisor.calls == [127]


def test_missing_right_to_mark_pods_fails_the_claim(node: WorkerNode) -> None:
    node.pods.put("train")
    node.pods.refuses_marks = True

    assert error_of(node.prepare(node.put("train"))) == "pod default/train: 403 Forbidden"
    assert node.hypervisor.calls == []
