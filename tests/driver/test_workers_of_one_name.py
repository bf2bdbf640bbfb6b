"""A pod that is deleted by force and created anew, while the kubelet still ends the first one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.prepared_node import GPU_0, GPU_1, error_of, share_result
from tests.support.worker_node import WorkerNode, worker_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkerNode]:
    with worker_node(tmp_path) as found:
        yield found


@pytest.mark.parametrize("card", [GPU_0, GPU_1], ids=["same card", "other card"])
@pytest.mark.parametrize("restarts", [False, True])
def test_successor_waits_for_its_predecessor_and_gets_its_own_limits(
    node: WorkerNode, card: str, restarts: bool
) -> None:
    pod = node.pods.put("train")
    first = node.put("first", share_result(vram="8Gi"), pod="train")
    node.prepare(first)
    node.pods.set_phase("train", "Running")
    node.pods.put("train", uid="uid-of-the-next")
    second = node.put("second", share_result(card), pod="train", pod_uid="uid-of-the-next")

    error = error_of(node.prepare(second))
    if restarts:
        node = node.restarted()
    keeper = node.keeper
    for _ in range(3):
        keeper.repair(node.workers)

    assert error == (
        "pod default/train: UID uid-of-the-next: found claim default/first of an earlier pod of "
        "this name still prepared, UID uid-of-train, expected the kubelet to unprepare it"
    )
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 8 * GIB)}
    assert node.hypervisor.calls == [128]

    assert node.setup.unprepare(first) == {first.uid: None}
    assert not node.hypervisor.file(pod).exists()
    assert isinstance(node.prepare(second), PreparedClaim)
    assert node.hypervisor.limits(pod) == {card: (33, 16 * GIB)}
    assert len(node.hypervisor.calls) == 2

    before = node.hypervisor.file(pod).parent.stat().st_ino
    assert node.setup.unprepare(first) == {first.uid: None}
    assert node.hypervisor.file(pod).parent.stat().st_ino == before
    if restarts:
        node.setup.ledger.close()


def test_memory_that_nobody_registered_is_not_taken_for_the_pods_own(node: WorkerNode) -> None:
    """As it is left by a pod whose claims were unprepared without a bridge."""
    pod = node.pods.put("train")
    first = node.put("first", pod="train")
    node.prepare(first)
    left = node.hypervisor.file(pod).read_bytes()
    inner = node.hypervisor.file(pod).with_name("of-the-first")
    node.setup.unprepare(first)
    node.hypervisor.file(pod).parent.mkdir()
    node.hypervisor.file(pod).write_bytes(left)
    inner.write_text("")
    node.pods.put("train", uid="uid-of-the-next")

    node.prepare(node.put("second", pod="train", pod_uid="uid-of-the-next"))

    assert len(node.hypervisor.calls) == 2
    assert not inner.exists()


def test_notes_of_pods_that_are_gone_are_deleted(node: WorkerNode) -> None:
    """A claim by name outlives its pods, and is prepared for the next one."""
    node.pods.put("train")
    node.prepare(node.put("claim", pod="train"))
    node.pods.put("train", uid="uid-of-the-next")
    again = node.put("claim", pod="train", pod_uid="uid-of-the-next")

    assert isinstance(node.prepare(again), PreparedClaim)
    node.workers.forget_gone()

    notes = node.hypervisor.shm / ".tensorfusion-dra"
    assert [note.name for note in notes.iterdir()] == ["uid-of-the-next"]
    assert len(node.hypervisor.calls) == 2


def test_running_pod_whose_folder_was_replaced_is_left_alone(node: WorkerNode) -> None:
    """Its containers keep the folder that they have mounted, so only a new pod helps."""
    pod = node.pods.put("train")
    ref = node.put("train")
    node.prepare(ref)
    node.pods.set_phase("train", "Running")
    folder = node.hypervisor.file(pod).parent
    memory = node.hypervisor.file(pod).read_bytes()
    folder.rename(folder.with_name("mounted"))
    folder.mkdir()
    node.hypervisor.file(pod).write_bytes(memory)
    keeper = node.keeper

    for _ in range(3):
        keeper.repair(node.workers)
    error = error_of(node.prepare(ref))

    assert error.endswith("expected the same; delete the pod")
    assert len(node.pods.patches) == 1
    assert node.setup.unprepare(ref) == {ref.uid: None}
    assert not folder.exists()
