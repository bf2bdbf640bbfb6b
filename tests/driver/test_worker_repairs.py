"""Workers over restarts of the driver and of Tensor Fusion's hypervisor."""

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcement.hypervisor.worker_memory import WorkerMemory
from tests.support.prepared_node import GPU_0, share_result
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tests.support.worker_node import PREFIX, WorkerNode, worker_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkerNode]:
    with worker_node(tmp_path) as found:
        yield found


def test_restarted_driver_finds_the_worker_registered(node: WorkerNode) -> None:
    node.pods.put("train")
    ref = node.put("train")
    node.prepare(ref)
    again = node.restarted()

    assert isinstance(again.prepare(ref), PreparedClaim)

    again.setup.ledger.close()
    assert node.hypervisor.calls == [128]
    assert len(node.pods.patches) == 1


def test_running_pod_is_recovered_by_a_restarted_hypervisor_itself(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    ref = node.put("train")
    node.prepare(ref)
    node.pods.set_phase("train", "Running")
    node.hypervisor.stop()
    node.hypervisor.start()

    keeper = node.keeper
    keeper.repair(node.workers)
    keeper.repair(node.workers)

    assert node.hypervisor.allocated == {pod.uid: (GPU_0,)}
    assert node.hypervisor.calls == [128]


def test_pending_pod_that_a_restarted_hypervisor_lost_is_registered_again(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    node.prepare(node.put("train"))
    node.hypervisor.stop()
    node.hypervisor.start()
    node.hypervisor.beat(pod, at=time.time() - 60)
    keeper = node.keeper

    keeper.repair(node.workers)
    assert node.hypervisor.allocated == {}

    keeper.repair(node.workers)
    assert node.hypervisor.allocated == {pod.uid: (GPU_0,)}
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 16 * GIB)}


def test_finished_pod_is_not_registered_again(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    node.prepare(node.put("train"))
    node.pods.set_phase("train", "Succeeded")
    node.hypervisor.beat(pod, at=time.time() - 60)
    keeper = node.keeper

    for _ in range(4):
        keeper.repair(node.workers)

    assert node.pods.reads == 2  # one by prepare, one by the first repair
    assert node.hypervisor.calls == [128]


def test_keeper_follows_changes_by_itself_until_stopped(node: WorkerNode) -> None:
    keeper = node.keeper
    thread = Thread(target=keeper.run, args=(node.workers,))
    thread.start()
    node.pods.put("borrower")
    node.pods.put("other")
    node.prepare(node.put("borrower", share_result(vram="20Gi"), vram_limit="60Gi"))

    node.prepare(node.put("other", share_result(vram="30Gi")))

    assert eventually(
        lambda: node.pods.annotations("borrower")[PREFIX + "vram-limit"] == str(50 * GIB)
    )
    keeper.stop()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_memory_that_a_container_replaced_is_not_written(node: WorkerNode, tmp_path: Path) -> None:
    pod = node.pods.put("train")
    ref = node.put("train")
    node.prepare(ref)
    secret = tmp_path / "secret"
    secret.write_bytes(node.hypervisor.file(pod).read_bytes())
    before = secret.read_bytes()
    node.hypervisor.file(pod).unlink()
    node.hypervisor.file(pod).symlink_to(secret)
    memory = WorkerMemory(node.hypervisor.shm)

    assert not memory.is_kept(pod, (GPU_0,))
    with pytest.raises(RetryableError, match="Too many levels of symbolic links"):
        memory.set_limits(pod, {GPU_0: Limit(sm_percent=1, vram_bytes=1)})
    assert secret.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "0 bytes"),
        (b"\x01", "1 bytes"),
        (b"\x07" + bytes(35_503), "found version 8, expected 2"),
    ],
)
def test_memory_of_another_layout_is_not_written(
    tmp_path: Path, content: bytes, found: str
) -> None:
    pod = PodRef(namespace="ns", name="pod", uid="u")
    (tmp_path / "ns" / "pod").mkdir(parents=True)
    (tmp_path / "ns" / "pod" / "shm").write_bytes(content)

    with pytest.raises(RetryableError, match=found):
        WorkerMemory(tmp_path).set_limits(pod, {})
