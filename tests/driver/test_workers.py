"""Pods whose limits Tensor Fusion's hypervisor keeps, through its device plugin."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.status import StatusReporter
from tests.driver.status_server import StatusAtServer
from tests.support.builders.prepared_claims import limit
from tests.support.prepared_node import GPU_0, GPU_1, error_of, share_result
from tests.support.worker_node import PREFIX, WorkerNode, worker_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkerNode]:
    with worker_node(tmp_path) as found:
        yield found


def test_shared_memory_of_a_pod_has_the_limits_of_its_claim(node: WorkerNode) -> None:
    pod = node.pods.put("train")

    outcome = node.prepare(node.put("train"))

    assert isinstance(outcome, PreparedClaim)
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 16 * GIB)}
    assert node.hypervisor.calls == [128]
    assert node.pods.labels("train") == {PREFIX + "component": "worker"}
    assert node.pods.annotations("train") == {
        PREFIX + "index": "128",
        PREFIX + "gpu-ids": GPU_0,
        PREFIX + "gpu-count": "1",
        PREFIX + "container-gpus": "{}",
        PREFIX + "isolation": "soft",
        PREFIX + "qos": "medium",
        PREFIX + "compute-percent-limit": "33",
        PREFIX + "vram-limit": str(16 * GIB),
        PREFIX + "tflops-request": "100",
        PREFIX + "vram-request": str(16 * GIB),
        PREFIX + "dra-marks": "component,compute-percent-limit,container-gpus,gpu-count,gpu-ids,"
        "index,isolation,qos,tflops-request,vram-limit,vram-request",
    }


def test_marks_of_the_first_claim_do_not_limit_the_second(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    node.prepare(node.put("claim-a", share_result(vram="8Gi"), pod="train"))
    node.setup.pods.stored["default/train"] = node.pods.annotations("train")

    outcome = node.prepare(node.put("claim-b", share_result(GPU_1), pod="train"))

    assert isinstance(outcome, PreparedClaim)
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 8 * GIB), GPU_1: (33, 16 * GIB)}


def test_claims_of_a_pod_on_one_card_add_up(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    node.prepare(node.put("claim-a", pod="train"))

    node.prepare(node.put("claim-b", share_result(vram="8Gi"), pod="train"))

    assert node.hypervisor.limits(pod) == {GPU_0: (66, 24 * GIB)}
    node.keeper.follow(node.workers)
    annotations = node.pods.annotations("train")
    assert annotations[PREFIX + "vram-limit"] == str(24 * GIB)
    assert annotations[PREFIX + "compute-percent-limit"] == "66"


def test_repeated_prepare_asks_neither_the_api_server_nor_the_hypervisor(node: WorkerNode) -> None:
    node.pods.put("train")
    ref = node.put("train")
    node.prepare(ref)
    before = (node.pods.reads, node.pods.lists, len(node.pods.patches), list(node.hypervisor.calls))

    assert isinstance(node.prepare(ref), PreparedClaim)

    assert before == (
        node.pods.reads,
        node.pods.lists,
        len(node.pods.patches),
        node.hypervisor.calls,
    )


def test_index_of_a_finished_pod_is_free_again(node: WorkerNode) -> None:
    node.pods.put("one")
    node.pods.put("two")
    node.prepare(node.put("one"))
    node.pods.set_phase("one", "Succeeded")

    node.prepare(node.put("two"))

    assert node.hypervisor.calls == [128, 128]


def test_two_cards_of_a_pod_have_their_own_limits(node: WorkerNode) -> None:
    pod = node.pods.put("train")

    node.prepare(node.put("train", share_result(GPU_0), share_result(GPU_1, vram="8Gi")))

    assert node.hypervisor.limits(pod) == {GPU_0: (33, 16 * GIB), GPU_1: (33, 8 * GIB)}
    assert node.pods.annotations("train")[PREFIX + "vram-limit"] == str(8 * GIB)


def test_two_claims_of_a_pod_are_one_worker(node: WorkerNode) -> None:
    containers = [
        {"name": "a", "resources": {"claims": [{"name": "first"}]}},
        {"name": "b", "resources": {"claims": [{"name": "second"}]}},
    ]
    entries = [
        {"name": "first", "resourceClaimName": "claim-a"},
        {"name": "second", "resourceClaimName": "claim-b"},
    ]
    pod = node.pods.put("train", spec={"containers": containers, "resourceClaims": entries})

    node.prepare(node.put("claim-a", pod="train"))
    node.prepare(node.put("claim-b", share_result(GPU_1, vram="8Gi"), pod="train"))

    assert node.hypervisor.limits(pod) == {GPU_0: (33, 16 * GIB), GPU_1: (33, 8 * GIB)}
    assert (
        node.pods.annotations("train")[PREFIX + "container-gpus"]
        == f'{{"a":["{GPU_0}"],"b":["{GPU_1}"]}}'
    )


def test_changed_limit_is_written_into_the_memory_and_then_annotated(node: WorkerNode) -> None:
    borrower = node.pods.put("borrower")
    node.pods.put("other")
    keeper = node.keeper
    node.prepare(node.put("borrower", share_result(vram="20Gi"), vram_limit="60Gi"))
    assert node.hypervisor.limits(borrower) == {GPU_0: (33, 60 * GIB)}

    node.prepare(node.put("other", share_result(vram="30Gi")))
    assert node.hypervisor.limits(borrower) == {GPU_0: (33, 50 * GIB)}

    keeper.follow(node.workers)
    assert node.pods.annotations("borrower")[PREFIX + "vram-limit"] == str(50 * GIB)


def test_limits_that_change_during_a_registration_are_written_and_reported(
    node: WorkerNode,
) -> None:
    server = StatusAtServer()
    node.setup.status = StatusReporter(server)
    node.setup.preparer = node.setup.with_claims(node.setup.claims)
    lender, other = node.pods.put("lender"), node.pods.put("other")
    results = [share_result(vram="20Gi"), share_result(vram="40Gi")]
    refs = [node.put("lender", results[0], vram_limit="60Gi"), node.put("other", results[1])]
    node.hypervisor.before_answer = lambda: node.prepare(refs[1])
    keeper = node.keeper

    outcome = node.prepare(refs[0])
    keeper.follow(node.workers)
    node.setup.status.stop()
    node.setup.status.run()

    assert isinstance(outcome, PreparedClaim)
    assert node.hypervisor.limits(other) == {GPU_0: (33, 40 * GIB)}
    assert node.hypervisor.limits(lender) == {GPU_0: (33, 40 * GIB)}
    assert node.pods.annotations("lender")[PREFIX + "vram-limit"] == str(40 * GIB)
    assert outcome.shares[0].limit == limit(33, 40)
    assert server.vram_limits() == [40, 40]


def test_claim_that_goes_during_a_registration_is_no_part_of_the_worker(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    gone, stays = (
        node.put("claim-a", pod="train"),
        node.put("claim-b", share_result(GPU_1), pod="train"),
    )
    node.prepare(gone)
    node.hypervisor.before_answer = lambda: node.setup.unprepare(gone)

    error = error_of(node.prepare(stays))
    assert "found other claims than at the start of its registration" in error
    assert node.pods.labels("train") == node.pods.annotations("train") == {}

    assert isinstance(node.prepare(stays), PreparedClaim)
    assert node.hypervisor.limits(pod) == {GPU_1: (33, 16 * GIB)}


def test_shared_memory_is_gone_after_the_last_claim_of_the_pod(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    refs = [
        node.put("claim-a", pod="train"),
        node.put("claim-b", share_result(GPU_1), pod="train"),
    ]
    for ref in refs:
        node.prepare(ref)

    node.setup.unprepare(refs[0])
    assert node.hypervisor.file(pod).exists()

    node.setup.unprepare(refs[1])
    assert not node.hypervisor.file(pod).parent.exists()
