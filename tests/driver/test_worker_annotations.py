"""Annotations of a pod rule its worker at the hypervisor; the driver's own ones hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import workers
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcement.hypervisor import registered_folder
from tests.support.prepared_node import GPU_0, GPU_1, share_result
from tests.support.worker_node import PREFIX, WorkerNode, worker_node

SMALL: Final = {"tflops": "3", "vram": "1Gi"}
"""Amounts of a claim for 1 % of a card."""
RULED: Final = {
    PREFIX + "compute-percent-limit": "1",
    PREFIX + "gpu-count": "1",
    PREFIX + "gpu-ids": GPU_0,
    PREFIX + "isolation": "soft",
    PREFIX + "vram-limit": str(GIB),
}
FOREIGN: Final = [
    {"compute-percent-limit": "100"},
    {"tflops-limit": "312"},
    {"tflops-limit": "312", "compute-percent-limit": "1"},
    {"tflops-limit": "1", "compute-percent-limit": "1"},
    {"vram-limit": "80Gi", "gpu-count": "none"},
    {"gpu-indices": "none"},
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkerNode]:
    with worker_node(tmp_path) as found:
        yield found


def write(node: WorkerNode, values: dict[str, str]) -> None:
    """Write annotations of the pod `train`, as a tenant may."""
    stored: dict[str, Any] = node.pods.stored["train"]["metadata"]["annotations"]
    stored.update({PREFIX + key: value for key, value in values.items()})


def ruling(node: WorkerNode) -> dict[str, str]:
    """Return the annotations of the pod that the hypervisor obeys."""
    found = node.pods.annotations("train")
    keys = {*RULED, PREFIX + "tflops-limit", PREFIX + "gpu-indices"}
    return {key: value for key, value in found.items() if key in keys}


@pytest.mark.parametrize(
    "foreign", [*FOREIGN, {"dra-marks": "tflops-limit", **FOREIGN[1]}], ids=str
)
def test_annotations_of_a_pod_give_it_no_more_than_its_claim(
    node: WorkerNode, foreign: dict[str, str]
) -> None:
    pod = node.pods.put("train")
    write(node, foreign)

    node.prepare(node.put("train", share_result(**SMALL)))

    assert ruling(node) == RULED
    assert node.hypervisor.rate("train") == 1
    assert node.hypervisor.limits(pod) == {GPU_0: (1, GIB)}


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
def test_replaced_annotations_are_kept_and_restored(
    node: WorkerNode, foreign: dict[str, str]
) -> None:
    node.pods.put("train")
    write(node, foreign)
    before = node.pods.annotations("train")
    node.hypervisor.cards.remove(GPU_1)

    assert not isinstance(
        node.prepare(node.put("b", share_result(GPU_1), pod="train")), PreparedClaim
    )
    assert node.pods.annotations("train") == before

    node.setup.unprepare(node.put("b", share_result(GPU_1), pod="train"))
    node.prepare(node.put("a", share_result(**SMALL), pod="train"))
    found = workers.foreign_annotations(node.pods.stored["train"])
    assert {key: value for key, value in found.items() if key in before} == before


def test_lent_compute_that_was_taken_back_is_regulated_as_granted(node: WorkerNode) -> None:
    node.pods.put("other")
    pod = node.pods.put("train")
    write(node, {"tflops-limit": "312"})
    node.prepare(node.put("train", share_result(**SMALL), tflops_limit="312"))
    keeper = node.keeper
    assert node.hypervisor.rate("train") == 100

    node.prepare(node.put("other", share_result(tflops="300")))
    node.pods.stored["train"]["metadata"]["annotations"].pop(PREFIX + "dra-marks")
    keeper.follow(node.workers)

    assert node.hypervisor.limits(pod) == {GPU_0: (3, GIB)}
    assert node.hypervisor.rate("train") == 3


@pytest.mark.parametrize(
    "foreign", [*FOREIGN, {"gpu-ids": GPU_1}, {"isolation": "shared"}], ids=str
)
def test_annotations_of_a_running_pod_are_put_back(
    node: WorkerNode, foreign: dict[str, str]
) -> None:
    node.pods.put("train")
    node.prepare(node.put("train", share_result(**SMALL)))
    node.pods.set_phase("train", "Running")
    keeper = node.keeper
    write(node, foreign)

    for _ in range(2):
        keeper.note_event("MODIFIED", node.pods.stored["train"])
        keeper.follow(node.workers)

    assert ruling(node) == RULED
    assert len(node.pods.patches) == 2


@pytest.mark.parametrize("by_a_lost_answer", [False, True])
def test_annotations_that_cannot_be_put_back_are_noted_until_they_are_right(
    node: WorkerNode, by_a_lost_answer: bool
) -> None:
    pod = node.pods.put("train")
    node.prepare(node.put("train", share_result(**SMALL)))
    note = str(node.hypervisor.shm / ".tensorfusion-dra" / pod.uid)
    keeper = node.keeper
    write(node, {"tflops-limit": "312"})
    node.pods.refuses_marks = True

    keeper.note_pods(node.pods.stored.values())
    keeper.follow(node.workers)
    _, trouble = registered_folder.noted(note)
    assert trouble.startswith("tensor-fusion.ai/tflops-limit: found 312; the driver cannot")

    if by_a_lost_answer:
        node.pods.stored["train"]["metadata"]["annotations"].pop(PREFIX + "tflops-limit")
    node.pods.refuses_marks = False
    keeper.follow(node.workers)
    assert registered_folder.noted(note)[1] == ""
    assert ruling(node) == RULED


def test_pod_that_lost_its_label_is_registered_again_instead(node: WorkerNode) -> None:
    node.pods.put("train")
    node.prepare(node.put("train", share_result(**SMALL)))
    metadata = node.pods.stored["train"]["metadata"]
    metadata["labels"].clear()
    metadata["annotations"].clear()
    keeper = node.keeper

    keeper.note_pods(node.pods.stored.values())
    keeper.follow(node.workers)

    assert node.pods.annotations("train") == {}


def test_pods_of_others_are_left_alone(node: WorkerNode) -> None:
    node.pods.put("train")
    write(node, {"tflops-limit": "312", "gpu-ids": GPU_0})
    keeper = node.keeper

    keeper.note_pods(node.pods.stored.values())
    keeper.note_event("DELETED", node.pods.stored["train"])
    keeper.follow(node.workers)

    assert node.pods.patches == []
