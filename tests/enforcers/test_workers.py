"""Pods for which Tensor Fusion's hypervisor keeps the limits of their claims."""

import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import Limit
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.enforcers.tensor_fusion import marks, shared_memory
from tensorfusion_dra.enforcers.tensor_fusion.device_plugin import DevicePlugin
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import WorkerMemory
from tensorfusion_dra.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share
from tests.support.builders.stored_claims import stored_claim
from tests.support.capabilities import give_to_a_container, without_capabilities
from tests.support.prepared_node import GPU_0, GPU_1, error_of, share_result
from tests.support.threads import running
from tests.support.waiting import eventually
from tests.support.worker_node import PREFIX, WorkerNode, worker_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WorkerNode]:
    with worker_node(tmp_path) as found:
        yield found


def test_shared_memory_of_a_pod_has_the_limits_of_its_claim(node: WorkerNode) -> None:
    pod, _ = node.run()

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


def test_claims_of_a_pod_on_one_card_add_up(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    node.prepare(node.put("claim-a", pod="train"))

    node.prepare(node.put("claim-b", share_result(vram="8Gi"), pod="train"))

    assert node.hypervisor.limits(pod) == {GPU_0: (66, 24 * GIB)}
    node.follow()
    annotations = node.pods.annotations("train")
    assert annotations[PREFIX + "vram-limit"] == str(24 * GIB)
    assert annotations[PREFIX + "compute-percent-limit"] == "66"


def test_repeated_prepare_asks_neither_the_api_server_nor_the_hypervisor(node: WorkerNode) -> None:
    _, ref = node.run()
    before = (node.pods.reads, node.pods.lists, len(node.pods.patches), list(node.hypervisor.calls))

    node.prepared(ref)

    assert before == (
        node.pods.reads,
        node.pods.lists,
        len(node.pods.patches),
        node.hypervisor.calls,
    )


def test_index_of_a_finished_pod_is_free_again(node: WorkerNode) -> None:
    node.run("one")
    node.pods.set_phase("one", "Succeeded")

    node.run("two")

    assert node.hypervisor.calls == [128, 128]


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

    node.prepare(node.put("claim-a", share_result(vram="8Gi"), pod="train"))
    # Marks of the first claim do not limit the second one.
    node.setup.pods.stored["default/train"] = node.pods.annotations("train")
    node.prepare(node.put("claim-b", share_result(GPU_1), pod="train"))

    assert node.hypervisor.limits(pod) == {GPU_0: (33, 8 * GIB), GPU_1: (33, 16 * GIB)}
    annotations = node.pods.annotations("train")
    assert annotations[PREFIX + "container-gpus"] == f'{{"a":["{GPU_0}"],"b":["{GPU_1}"]}}'
    assert annotations[PREFIX + "vram-limit"] == str(8 * GIB)


def test_changed_limit_is_written_into_the_memory_and_then_annotated(
    node: WorkerNode,
) -> None:
    borrower, _ = node.run("borrower", share_result(vram="20Gi"), vram_limit="60Gi")
    assert node.hypervisor.limits(borrower) == {GPU_0: (33, 60 * GIB)}

    with running(node.workers.run, stop=node.workers.stop):
        node.run("other", share_result(vram="30Gi"))

        assert node.hypervisor.limits(borrower) == {GPU_0: (33, 50 * GIB)}
        key, expected = PREFIX + "vram-limit", str(50 * GIB)
        assert eventually(lambda: node.pods.annotations("borrower")[key] == expected)


def test_limits_that_change_during_a_check_stay_as_they_were_changed(
    node: WorkerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrower, _ = node.run("borrower", share_result(vram="20Gi"), vram_limit="60Gi")
    during = iter([lambda: node.run("other", share_result(vram="30Gi"))])

    def is_serving(plugin: DevicePlugin) -> bool:
        next(during, lambda: None)()  # the check has read the claims by now
        return True

    monkeypatch.setattr(DevicePlugin, "is_serving", is_serving)
    node.repair()

    assert node.hypervisor.limits(borrower) == {GPU_0: (33, 50 * GIB)}


class Statuses:
    """The memory of each claim whose status was written."""

    def __init__(self) -> None:
        self.vram_bytes: list[int] = []

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        self.vram_bytes.append(devices[0]["data"]["limits"]["vramBytes"])
        return True


def test_limits_that_change_during_a_registration_are_written_and_reported(
    node: WorkerNode,
) -> None:
    statuses = Statuses()
    node.setup.use(status=StatusReporter(statuses))
    lender, other = node.pods.put("lender"), node.pods.put("other")
    results = [share_result(vram="20Gi"), share_result(vram="40Gi")]
    refs = [node.put("lender", results[0], vram_limit="60Gi"), node.put("other", results[1])]
    node.hypervisor.before_answer = lambda: node.prepare(refs[1])

    record = node.prepared(refs[0])
    node.follow()
    node.setup.status.stop()
    node.setup.status.run()

    assert node.hypervisor.limits(other) == {GPU_0: (33, 40 * GIB)}
    assert node.hypervisor.limits(lender) == {GPU_0: (33, 40 * GIB)}
    assert node.pods.annotations("lender")[PREFIX + "vram-limit"] == str(40 * GIB)
    assert record.shares[0].limit == limit(33, 40)
    assert statuses.vram_bytes == [40 * GIB] * 2


def test_claim_that_goes_during_a_registration_is_no_part_of_the_worker(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    gone = node.put("claim-a", pod="train")
    stays = node.put("claim-b", share_result(GPU_1), pod="train")
    node.prepare(gone)
    node.hypervisor.before_answer = lambda: node.setup.unprepare(gone)

    text = "found other claims than at the start of its registration"
    assert text in node.refused(stays)
    assert node.pods.labels("train") == node.pods.annotations("train") == {}

    node.prepared(stays)
    assert node.hypervisor.limits(pod) == {GPU_1: (33, 16 * GIB)}


def test_shared_memory_is_gone_after_the_last_claim_of_the_pod(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    first = node.put("claim-a", pod="train")
    second = node.put("claim-b", share_result(GPU_1), pod="train")
    node.prepare(first)
    node.prepare(second)

    node.setup.unprepare(first)
    assert node.hypervisor.file(pod).exists()

    node.setup.unprepare(second)
    assert not node.hypervisor.file(pod).parent.exists()


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

    node.refused(node.put("b", share_result(GPU_1), pod="train"))
    assert node.pods.annotations("train") == before

    node.setup.unprepare(node.put("b", share_result(GPU_1), pod="train"))
    node.prepare(node.put("a", share_result(**SMALL), pod="train"))
    found = share_policy.original_annotations(node.pods.stored["train"])
    assert {key: value for key, value in found.items() if key in before} == before


def test_lent_compute_that_was_taken_back_is_regulated_as_granted(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    write(node, {"tflops-limit": "312"})
    node.prepare(node.put("train", share_result(**SMALL), tflops_limit="312"))
    assert node.hypervisor.rate("train") == 100

    node.run("other", share_result(tflops="300"))
    node.pods.stored["train"]["metadata"]["annotations"].pop(PREFIX + "dra-marks")
    node.follow()

    assert node.hypervisor.limits(pod) == {GPU_0: (3, GIB)}
    assert node.hypervisor.rate("train") == 3


@pytest.mark.parametrize(
    "foreign", [*FOREIGN, {"gpu-ids": GPU_1}, {"isolation": "shared"}], ids=str
)
def test_annotations_of_a_running_pod_are_put_back(
    node: WorkerNode, foreign: dict[str, str]
) -> None:
    node.run("train", share_result(**SMALL))
    node.pods.set_phase("train", "Running")
    write(node, foreign)

    for _ in range(2):
        node.workers.on_event("MODIFIED", node.pods.stored["train"])
        node.follow()

    assert ruling(node) == RULED
    assert len(node.pods.patches) == 2


@pytest.mark.parametrize("by_a_lost_answer", [False, True])
def test_annotations_that_cannot_be_put_back_are_noted_until_they_are_right(
    node: WorkerNode, by_a_lost_answer: bool
) -> None:
    pod, _ = node.run("train", share_result(**SMALL))
    note = str(node.hypervisor.shm / ".tensorfusion-dra" / pod.uid)
    write(node, {"tflops-limit": "312"})
    node.pods.refuses_marks = True

    node.workers.on_pods(node.pods.stored.values())
    node.follow()
    _, reason = shared_memory.noted(note)
    assert reason.startswith("tensor-fusion.ai/tflops-limit: found 312; the driver cannot")

    if by_a_lost_answer:
        node.pods.stored["train"]["metadata"]["annotations"].pop(PREFIX + "tflops-limit")
    node.pods.refuses_marks = False
    node.follow()
    assert shared_memory.noted(note)[1] == ""
    assert ruling(node) == RULED


def test_pod_that_lost_its_label_is_registered_again_instead(node: WorkerNode) -> None:
    node.run("train", share_result(**SMALL))
    metadata = node.pods.stored["train"]["metadata"]
    metadata["labels"].clear()
    metadata["annotations"].clear()

    node.workers.on_pods(node.pods.stored.values())
    node.follow()

    assert node.pods.annotations("train") == {}


def test_pods_of_others_are_left_alone(node: WorkerNode) -> None:
    node.pods.put("train")
    write(node, {"tflops-limit": "312", "gpu-ids": GPU_0})

    node.workers.on_pods(node.pods.stored.values())
    node.workers.on_event("DELETED", node.pods.stored["train"])
    node.follow()

    assert node.pods.patches == []


def test_claim_of_several_pods_is_refused(node: WorkerNode) -> None:
    claim = stored_claim("train", share_result())
    claim["status"]["reservedFor"].append({"resource": "pods", "name": "b", "uid": "uid-of-b"})

    assert node.refused(node.setup.claims.put(claim)) == (
        "claim default/train: pods: found default/train, default/b, expected exactly one, as "
        "Tensor Fusion's hypervisor keeps limits by pod"
    )


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

    error = node.refused(ref)
    node.repair(2)

    assert expected in error
    assert len(error) < 1_000
    assert node.pods.labels("train") == node.pods.annotations("train") == {}
    node.hypervisor.answer = None
    node.prepared(ref)


@pytest.mark.parametrize("index", ["9" * 5_000, "-1", "0x7f", "\u0661", "1.5", "", "²"])
def test_index_of_any_form_in_another_pod_fails_no_claim(node: WorkerNode, index: str) -> None:
    node.pods.put("other")
    metadata = node.pods.stored["other"]["metadata"]
    metadata["labels"][PREFIX + "component"] = "worker"
    metadata["annotations"][PREFIX + "index"] = index

    node.run()


def test_without_a_hypervisor_marks_are_withdrawn_until_it_serves(
    node: WorkerNode,
) -> None:
    pod = node.pods.put("train")
    node.hypervisor.stop()
    ref = node.put("train")

    assert "expected it to serve on this node" in node.refused(ref)
    assert node.pods.patches == []

    node.hypervisor.start()
    node.prepared(ref)
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

    assert node.refused(ref) == (
        f"pod default/train: {GPU_0}: found in use by pod default/other of Tensor Fusion's "
        f"scheduler, expected a card that it does not hand out"
    )
    assert node.pods.patches == []

    node.pods.set_phase("other", "Failed")
    node.prepared(ref)


def test_whole_card_needs_no_hypervisor_unless_another_scheduler_has_the_card(
    node: WorkerNode,
) -> None:
    node.hypervisor.stop()
    node.pods.put("train")
    node.pods.put("other")
    node.pods.stored["other"]["metadata"] |= {
        "labels": {PREFIX + "component": "worker"},
        "annotations": {PREFIX + "gpu-ids": GPU_0},
    }
    ref = node.put("train", share_result(tflops="312", vram="80Gi"))

    assert "found in use by pod default/other" in node.refused(ref)
    node.pods.set_phase("other", "Failed")
    assert node.prepared(ref).shares[0].limit is None
    assert node.pods.patches == []


def test_pod_that_got_cards_from_tensor_fusions_scheduler_is_refused(node: WorkerNode) -> None:
    node.pods.put("train")
    node.pods.stored["train"]["metadata"]["annotations"] = {PREFIX + "gpu-ids": GPU_1}

    assert "expected none in a pod with a claim" in node.refused(node.put("train"))
    assert node.pods.patches == []


def test_index_of_a_pod_of_tensor_fusions_webhook_is_left_to_it(node: WorkerNode) -> None:
    limits = {"tensor-fusion.ai/index_f": "8", "tensor-fusion.ai/index_other": "1"}
    node.pods.put("other", spec={"containers": [{"resources": {"limits": limits}}]})
    node.pods.stored["other"]["metadata"]["labels"] = {PREFIX + "component": "worker"}

    node.run()

    assert node.hypervisor.calls == [127]


def test_pod_that_names_every_index_takes_no_more_than_one(node: WorkerNode) -> None:
    containers = [
        {"resources": {"limits": {f"tensor-fusion.ai/index_{socket:x}": str(amount)}}}
        for amount in range(8, 0, -1)
        for socket in range(15, -1, -1)
    ]
    node.pods.put("other", spec={"containers": containers})
    node.pods.stored["other"]["metadata"]["labels"] = {PREFIX + "component": "worker"}

    node.run()

    assert node.hypervisor.calls == [127]


def test_missing_right_to_mark_pods_fails_the_claim(node: WorkerNode) -> None:
    node.pods.put("train")
    node.pods.refuses_marks = True

    assert node.refused(node.put("train")) == "pod default/train: 403 Forbidden"
    assert node.hypervisor.calls == []


def test_restarted_driver_finds_the_worker_registered(node: WorkerNode) -> None:
    _, ref = node.run()
    again = node.restarted()

    again.prepared(ref)

    assert node.hypervisor.calls == [128]
    assert len(node.pods.patches) == 1


def test_running_pod_is_recovered_by_a_restarted_hypervisor_itself(node: WorkerNode) -> None:
    pod, _ = node.run()
    node.pods.set_phase("train", "Running")
    node.hypervisor.stop()
    node.hypervisor.start()

    node.repair(2)

    assert node.hypervisor.allocated == {pod.uid: (GPU_0,)}
    assert node.hypervisor.calls == [128]


def test_pending_pod_that_a_restarted_hypervisor_lost_is_registered_again(node: WorkerNode) -> None:
    pod, _ = node.run()
    node.hypervisor.stop()
    node.hypervisor.start()
    node.hypervisor.beat(pod, at=time.time() - 60)

    node.repair()
    assert node.hypervisor.allocated == {}

    node.repair()
    assert node.hypervisor.allocated == {pod.uid: (GPU_0,)}
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 16 * GIB)}


def test_finished_pod_is_not_registered_again(node: WorkerNode) -> None:
    pod, _ = node.run()
    node.pods.set_phase("train", "Succeeded")
    node.hypervisor.beat(pod, at=time.time() - 60)

    node.repair(4)

    assert node.hypervisor.calls == [128]


def test_memory_that_a_container_replaced_is_not_written(node: WorkerNode, tmp_path: Path) -> None:
    pod, _ = node.run()
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


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "inner").write_text("")


def replaced_by_a_locked_folder(file: Path) -> None:
    replaced_by_a_folder(file)
    give_to_a_container(file, 0)


def taken_with_its_folder(file: Path) -> None:
    give_to_a_container(file.parent, 0o500)


def locked_with_its_folder(file: Path) -> None:
    give_to_a_container(file.parent, 0)


@pytest.mark.parametrize(
    ("spoil", "is_left"),
    [
        (replaced_by_a_folder, False),
        (replaced_by_a_locked_folder, True),
        (taken_with_its_folder, True),
        (locked_with_its_folder, True),
    ],
)
def test_no_file_of_a_container_keeps_its_share_or_its_name(
    node: WorkerNode, spoil: Callable[[Path], None], is_left: bool
) -> None:
    pod = node.pods.put("train")
    ref = node.put("train", share_result(vram="60Gi"))
    node.prepare(ref)
    namespace = node.hypervisor.file(pod).parents[1]
    spoil(node.hypervisor.file(pod))

    with without_capabilities():
        assert node.setup.unprepare(ref) == {ref.uid: None}
        assert not node.setup.store.claims()
        left = list(namespace.iterdir())

        again = node.put("train", share_result(vram="60Gi"), uid="uid-of-the-second-claim")
        node.prepared(again)

    assert bool(left) is is_left
    for folder in left:
        shutil.rmtree(folder)


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

    error = node.refused(second)
    if restarts:
        node = node.restarted()
    node.repair(3)

    assert error == (
        "pod default/train: UID uid-of-the-next: found claim default/first of an earlier pod of "
        "this name still prepared, UID uid-of-train, expected the kubelet to unprepare it"
    )
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 8 * GIB)}
    assert node.hypervisor.calls == [128]

    assert node.setup.unprepare(first) == {first.uid: None}
    assert not node.hypervisor.file(pod).exists()
    node.prepared(second)
    assert node.hypervisor.limits(pod) == {card: (33, 16 * GIB)}
    assert len(node.hypervisor.calls) == 2

    before = node.hypervisor.file(pod).parent.stat().st_ino
    assert node.setup.unprepare(first) == {first.uid: None}
    assert node.hypervisor.file(pod).parent.stat().st_ino == before


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

    node.prepared(again)

    notes = node.hypervisor.shm / ".tensorfusion-dra"
    (notes / "uid-of-a-pod-of-an-earlier-release").touch()
    with running(node.workers.run, stop=node.workers.stop):
        assert eventually(
            lambda: {note.name for note in notes.iterdir()} == {".lock", "uid-of-the-next"}
        )
    assert stat.S_IMODE((notes / "uid-of-the-next").stat().st_mode) == 0o600
    assert len(node.hypervisor.calls) == 2


def test_hypervisor_keeps_soft_limits_of_its_own_claims_only() -> None:
    soft = prepared_share(0, limit(50, 20))
    hard = prepared_share(1, limit(50, 20), isolation=Isolation.HARD)
    free = prepared_share(2, None)

    claims = [
        prepared_claim(soft, hard, free, enforcer=enforcer) for enforcer in ("tensor-fusion", "mps")
    ]

    assert [list(marks.soft_shares(claim)) for claim in claims] == [[soft], []]


def test_running_pod_whose_folder_was_replaced_is_left_alone(node: WorkerNode) -> None:
    """Its containers keep the folder that they have mounted, so only a new pod helps."""
    pod, ref = node.run()
    node.pods.set_phase("train", "Running")
    folder = node.hypervisor.file(pod).parent
    memory = node.hypervisor.file(pod).read_bytes()
    folder.rename(folder.with_name("mounted"))
    folder.mkdir()
    node.hypervisor.file(pod).write_bytes(memory)

    node.repair(3)
    error = node.refused(ref)

    assert error.endswith("expected the same; delete the pod")
    assert len(node.pods.patches) == 1
    assert node.setup.unprepare(ref) == {ref.uid: None}
    assert not folder.exists()
