"""Pods for which Tensor Fusion's hypervisor keeps the limits of their claims."""

import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.enforcers.tensor_fusion import marks, shared_memory
from tensorfusion_dra.enforcers.tensor_fusion.device_plugin import DevicePlugin
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import WorkerMemory
from tensorfusion_dra.enforcers.tensor_fusion.workers import MAX_PATCHES
from tensorfusion_dra.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from tests.support import enforcer_files
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


def put_worker(node: WorkerNode, *, annotations: Mapping[str, str] = {}, **fields: Any) -> None:
    """Store a pod `other`, which Tensor Fusion's own scheduler or webhook made a worker."""
    node.pods.put("other", **fields)
    node.pods.stored["other"]["metadata"] |= {
        "labels": {PREFIX + "component": "worker"},
        "annotations": {PREFIX + key: text for key, text in annotations.items()},
    }


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


def test_repeated_prepare_asks_neither_the_api_server_nor_the_hypervisor(node: WorkerNode) -> None:
    def calls() -> tuple[int, ...]:
        counts = (node.pods.reads, node.pods.lists)
        return (*counts, len(node.pods.patches), len(node.hypervisor.calls))

    _, ref = node.run()
    before = calls()

    node.prepared(ref)
    assert calls() == before
    node.restarted().prepared(ref)
    assert calls()[2:] == before[2:]  # it finds the worker registered


def test_claims_of_a_pod_are_one_worker_with_the_sum_of_each_card(node: WorkerNode) -> None:
    by_container = {"a": "claim-a", "b": "claim-b"}
    spec = {
        "containers": [
            {"name": name, "resources": {"claims": [{"name": claim}]}}
            for name, claim in by_container.items()
        ],
        "resourceClaims": [
            {"name": claim, "resourceClaimName": claim} for claim in by_container.values()
        ],
    }
    pod = node.pods.put("train", spec=spec)
    results = [share_result(vram="8Gi"), share_result(GPU_1, tflops="250", vram="40Gi")]
    for name, result in zip(
        ("claim-a", "claim-b", "claim-c"), [*results, share_result()], strict=True
    ):
        node.prepared(node.put(name, result, pod="train"))
        # Marks of the first claim do not limit the next one.
        node.setup.pods.stored["default/train"] = node.pods.annotations("train")
    node.follow()

    assert node.hypervisor.limits(pod) == {GPU_0: (66, 24 * GIB), GPU_1: (81, 40 * GIB)}
    expected = {
        "container-gpus": f'{{"a":["{GPU_0}"],"b":["{GPU_1}"]}}',
        "vram-limit": str(24 * GIB),
        "compute-percent-limit": "66",
    }
    assert node.pods.annotations("train").items() >= prefixed(expected).items()


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
    pods = [node.pods.put(name) for name in ("lender", "other")]
    lender = node.put("lender", share_result(vram="20Gi"), vram_limit="60Gi")
    other = node.put("other", share_result(vram="40Gi"))
    node.hypervisor.before_answer = lambda: node.prepare(other)

    record = node.prepared(lender)
    node.follow()
    node.setup.status.stop()
    node.setup.status.run()

    assert [node.hypervisor.limits(pod) for pod in pods] == [{GPU_0: (33, 40 * GIB)}] * 2
    assert node.pods.annotations("lender")[PREFIX + "vram-limit"] == str(40 * GIB)
    assert record.shares[0].limit == limit(33, 40)
    assert statuses.vram_bytes == [40 * GIB] * 2


def test_claim_that_goes_during_a_registration_is_no_part_of_the_worker(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    gone = node.put("claim-a", pod="train")
    stays = node.put("claim-b", share_result(GPU_1), pod="train")
    node.prepare(gone)
    node.hypervisor.before_answer = lambda: node.setup.unprepare(gone)

    assert "found other claims than at the start of its registration" in node.refused(stays)
    assert node.pods.labels("train") == node.pods.annotations("train") == {}

    node.prepared(stays)
    assert node.hypervisor.limits(pod) == {GPU_1: (33, 16 * GIB)}


SMALL: Final = {"tflops": "3", "vram": "1Gi"}
"""Amounts of a claim for 1 % of a card."""


RULED: Final = {
    "compute-percent-limit": "1",
    "gpu-count": "1",
    "gpu-ids": GPU_0,
    "isolation": "soft",
    "vram-limit": str(GIB),
}

FOREIGN: Final = [
    {"compute-percent-limit": "100"},
    {"tflops-limit": "312"},
    {"tflops-limit": "312", "compute-percent-limit": "1"},
    {"tflops-limit": "1", "compute-percent-limit": "1"},
    {"vram-limit": "80Gi", "gpu-count": "none"},
    {"gpu-indices": "none"},
]


def prefixed(values: Mapping[str, str]) -> dict[str, str]:
    return {PREFIX + key: value for key, value in values.items()}


def write(node: WorkerNode, values: Mapping[str, str]) -> None:
    """Write annotations of the pod `train`, as a tenant may."""
    node.pods.stored["train"]["metadata"]["annotations"].update(prefixed(values))


def is_ruled(node: WorkerNode) -> bool:
    """Return True if the annotations that the hypervisor obeys are those of the claim."""
    keys = {PREFIX + key for key in (*RULED, "tflops-limit", "gpu-indices")}
    found = node.pods.annotations("train")
    return {key: found[key] for key in keys & found.keys()} == prefixed(RULED)


@pytest.mark.parametrize(
    "foreign", [*FOREIGN, {"dra-marks": "tflops-limit", **FOREIGN[1]}], ids=str
)
def test_annotations_of_a_pod_give_it_no_more_than_its_claim(
    node: WorkerNode, foreign: dict[str, str]
) -> None:
    pod = node.pods.put("train")
    write(node, foreign)

    node.prepare(node.put("train", share_result(**SMALL)))

    assert is_ruled(node)
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
    refused = node.put("b", share_result(GPU_1), pod="train")

    node.refused(refused)
    assert node.pods.annotations("train") == before

    node.setup.unprepare(refused)
    node.prepare(node.put("a", share_result(**SMALL), pod="train"))
    assert share_policy.original_annotations(node.pods.stored["train"]).items() >= before.items()


def test_lent_compute_that_was_taken_back_is_regulated_as_granted(node: WorkerNode) -> None:
    pod = node.pods.put("train")
    write(node, {"tflops-limit": "312"})
    node.prepare(node.put("train", share_result(**SMALL), tflops_limit="312"))
    # A limiter would take 100 percent for no limit, and look again after a minute.
    assert node.hypervisor.limits(pod) == {GPU_0: (99, GIB)}
    assert node.hypervisor.rate("train") == 99

    node.run("other", share_result(tflops="10"))
    node.pods.stored["train"]["metadata"]["annotations"].pop(PREFIX + "dra-marks")
    node.follow()

    assert node.hypervisor.limits(pod) == {GPU_0: (1, GIB)}
    assert node.hypervisor.rate("train") == 1


def test_few_annotations_change_in_a_round_and_those_that_changed_first(tmp_path: Path) -> None:
    with worker_node(tmp_path, sockets=(0, 13, 14, 15)) as node:
        pods = [f"pod-{index}" for index in range(2 * MAX_PATCHES + 2)]
        for name in pods:
            node.run(name, share_result(**SMALL))
        node.follow()
        before = len(node.pods.patches)

        written = []
        for number in range(4):
            # Some tenants change theirs in every round.
            for name in pods[: MAX_PATCHES if number else None]:
                node.pods.stored[name]["metadata"]["annotations"][PREFIX + "gpu-count"] = "9"
                node.workers.on_event("MODIFIED", deepcopy(node.pods.stored[name]))
            written.append(node.workers.follow_annotations())

        assert written == [MAX_PATCHES] * 4
        assert len(node.pods.patches) == before + sum(written)
        found = [node.pods.annotations(name)[PREFIX + "gpu-count"] for name in pods]
        assert found[MAX_PATCHES:] == ["1"] * (MAX_PATCHES + 2)


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

    assert is_ruled(node)
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
    assert is_ruled(node)


def test_pods_without_the_label_are_left_alone(node: WorkerNode) -> None:
    """One that lost it is registered again instead."""
    node.run("train", share_result(**SMALL))
    node.pods.stored["train"]["metadata"] |= {"labels": {}, "annotations": {}}
    node.pods.put("other")
    node.pods.stored["other"]["metadata"]["annotations"] = prefixed({"gpu-ids": GPU_0})
    before = deepcopy(node.pods.stored)

    node.workers.on_pods(node.pods.stored.values())
    node.workers.on_event("DELETED", node.pods.stored["other"])
    node.follow()

    assert node.pods.stored == before


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


def naming(*indexes: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of a pod with a container for each of these sockets and amounts."""
    limits = ({f"tensor-fusion.ai/index_{socket:x}": str(amount)} for socket, amount in indexes)
    return {"spec": {"containers": [{"resources": {"limits": each}} for each in limits]}}


@pytest.mark.parametrize(
    ("other", "index"),
    [
        ({"annotations": {"index": "128"}}, 127),
        ({"annotations": {"index": "128"}, "phase": "Succeeded"}, 128),
        # The webhook of Tensor Fusion names an index in the limits of a container.
        (naming((15, 8), (0xE, 1)), 127),
        # A pod takes no more than one, whatever it names.
        (
            naming(
                *((socket, amount) for amount in range(8, 0, -1) for socket in range(15, -1, -1))
            ),
            127,
        ),
        *(
            ({"annotations": {"index": text}}, 128)
            for text in ("9" * 5_000, "-1", "0x7f", "\u0661", "1.5", "", "²")
        ),
    ],
)
def test_worker_gets_the_highest_index_that_no_other_pod_has(
    node: WorkerNode, other: dict[str, Any], index: int
) -> None:
    put_worker(node, **other)

    node.run()

    assert node.hypervisor.calls == [index]


def test_claim_waits_for_a_hypervisor_that_serves_and_for_the_right_to_mark_its_pod(
    node: WorkerNode,
) -> None:
    pod, ref = node.pods.put("train"), node.put("train")
    node.hypervisor.stop()
    assert "expected it to serve on this node" in node.refused(ref)

    node.hypervisor.start()
    node.pods.refuses_marks = True
    assert node.refused(ref) == "pod default/train: 403 Forbidden"
    assert (node.pods.patches, node.hypervisor.calls) == ([], [])

    node.pods.refuses_marks = False
    node.prepared(ref)
    assert node.hypervisor.limits(pod) == {GPU_0: (33, 16 * GIB)}


def test_pod_that_the_hypervisor_does_not_see_fails_the_claim_soon(node: WorkerNode) -> None:
    node.pods.put("train", phase="Unknown")

    error = error_of(node.prepare(node.put("train"), seconds=2))

    assert "expected the hypervisor to see the pod with this index" in error
    assert node.pods.labels("train") == {}


@pytest.mark.parametrize("forged", [{}, {"dra-marks": "gpu-ids,index"}], ids=str)
def test_card_of_a_pod_of_tensor_fusions_scheduler_is_refused(
    node: WorkerNode, forged: dict[str, str]
) -> None:
    node.pods.put("train")
    put_worker(node, annotations={"gpu-ids": f"gpu-x, {GPU_0}", **forged})
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
    put_worker(node, annotations={"gpu-ids": GPU_0})
    ref = node.put("train", share_result(tflops="312", vram="80Gi"))

    assert "found in use by pod default/other" in node.refused(ref)
    node.pods.set_phase("other", "Failed")
    assert node.prepared(ref).shares[0].limit is None
    assert node.pods.patches == []


def test_pod_that_got_cards_from_tensor_fusions_scheduler_is_refused(node: WorkerNode) -> None:
    node.pods.put("train")
    write(node, {"gpu-ids": GPU_1})

    assert "expected none in a pod with a claim" in node.refused(node.put("train"))
    assert node.pods.patches == []


@pytest.mark.parametrize(("phase", "cards"), [("Running", (GPU_0,)), ("Succeeded", None)])
def test_pod_that_a_restarted_hypervisor_need_not_learn_of_is_not_registered_again(
    node: WorkerNode, phase: str, cards: tuple[str, ...] | None
) -> None:
    """It recovers a running pod itself."""
    pod, _ = node.run()
    node.pods.set_phase("train", phase)
    node.hypervisor.stop()
    node.hypervisor.start()
    node.hypervisor.beat(pod, at=time.time() - (60 if cards is None else 0))

    node.repair(4)

    assert node.hypervisor.allocated.get(pod.uid) == cards
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


def test_memory_that_a_container_replaced_is_not_written(node: WorkerNode, tmp_path: Path) -> None:
    pod, _ = node.run()
    file, secret = node.hypervisor.file(pod), tmp_path / "secret"
    before = file.read_bytes()
    file.rename(secret)
    file.symlink_to(secret)
    memory = WorkerMemory(node.hypervisor.shm)

    assert not memory.is_kept(pod, (GPU_0,))
    with pytest.raises(RetryableError, match="Too many levels of symbolic links"):
        memory.set_limits(pod, {GPU_0: limit(1, 1)})
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
    enforcer_files.write_shared_memory(tmp_path / "ns" / "pod" / "shm", content)

    with pytest.raises(RetryableError, match=found):
        WorkerMemory(tmp_path).set_limits(pod, {})


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    (file / "inner").mkdir(parents=True)


def replaced_by_a_locked_folder(file: Path) -> None:
    replaced_by_a_folder(file)
    give_to_a_container(file, 0)


@pytest.mark.parametrize(
    ("spoil", "is_left"),
    [
        (replaced_by_a_folder, False),
        (replaced_by_a_locked_folder, True),
        (lambda file: give_to_a_container(file.parent, 0o500), True),
        (lambda file: give_to_a_container(file.parent, 0), True),
    ],
    ids=["folder", "locked folder", "read-only parent", "locked parent"],
)
def test_no_file_of_a_container_keeps_its_share_or_its_name(
    node: WorkerNode, spoil: Callable[[Path], None], is_left: bool
) -> None:
    file = node.hypervisor.file(node.pods.put("train"))
    ref = node.put("train", share_result(vram="60Gi"))
    node.prepare(ref)
    spoil(file)

    with without_capabilities():
        assert node.setup.unprepare(ref) == {ref.uid: None}
        assert not node.setup.store.claims()
        left = list(file.parents[1].iterdir())
        node.prepared(node.put("train", share_result(vram="60Gi"), uid="uid-of-the-second-claim"))

    assert bool(left) is is_left
    for folder in left:
        shutil.rmtree(folder)


@pytest.mark.parametrize("card", [GPU_0, GPU_1], ids=["same card", "other card"])
@pytest.mark.parametrize("restarts", [False, True])
def test_successor_waits_for_its_predecessor_and_gets_its_own_limits(
    node: WorkerNode, card: str, restarts: bool
) -> None:
    pod, first = node.run("train", share_result(vram="8Gi"))
    node.pods.set_phase("train", "Running")
    second = put_for_the_next_pod(node, share_result(card))

    error = node.refused(second)
    if restarts:
        node = node.restarted()
    node.repair(3)

    assert error == (
        "pod default/train: UID uid-of-the-next: found claim default/train of an earlier pod of "
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


def put_for_the_next_pod(node: WorkerNode, *results: Any, name: str = "second") -> ClaimRef:
    """Store a claim of the next pod `train`, whose predecessor is deleted by force."""
    node.pods.put("train", uid="uid-of-the-next")
    return node.put(name, *results, pod="train", pod_uid="uid-of-the-next")


def test_memory_that_nobody_registered_is_not_taken_for_the_pods_own(node: WorkerNode) -> None:
    """As it is left by a pod whose claims were unprepared without a bridge."""
    pod, first = node.run()
    file = node.hypervisor.file(pod)
    left, inner = file.read_bytes(), file.with_name("of-the-first")
    node.setup.unprepare(first)
    enforcer_files.write_shared_memory(file, left)
    inner.touch()

    node.prepare(put_for_the_next_pod(node))

    assert len(node.hypervisor.calls) == 2
    assert not inner.exists()


def test_notes_of_pods_that_are_gone_are_deleted(node: WorkerNode) -> None:
    """A claim by name outlives its pods, and is prepared for the next one."""
    node.run()
    node.prepared(put_for_the_next_pod(node, name="train"))

    notes = node.hypervisor.shm / ".tensorfusion-dra"
    (notes / "uid-of-a-pod-of-an-earlier-release").touch()
    with running(node.workers.run, stop=node.workers.stop):
        assert eventually(
            lambda: {note.name for note in notes.iterdir()} == {".lock", "uid-of-the-next"}
        )
    assert stat.S_IMODE((notes / "uid-of-the-next").stat().st_mode) == 0o600
    assert len(node.hypervisor.calls) == 2


@pytest.mark.parametrize(
    ("reserved", "granted", "told"),
    [
        ([25], [25], 25),
        ([25], [99], 99),
        ([25], [100], 99),
        ([99], [100], 99),
        ([100], [100], 100),
        ([40, 60], [40, 60], 100),
        ([40, 30], [40, 60], 99),  # overcommitted
        ([100, 50], [100, 50], 100),  # virtual compute
    ],
)
def test_only_a_wholly_reserved_card_is_told_as_100_percent(
    reserved: list[int], granted: list[int], told: int
) -> None:
    shares = [
        replace(prepared_share(0, limit(percent, 20)), requested_sm_percent=request)
        for request, percent in zip(reserved, granted, strict=True)
    ]

    (found,) = marks.told_limits(shares).values()

    assert found == limit(told, 20 * len(shares))


def test_hypervisor_keeps_soft_limits_of_its_own_claims_only() -> None:
    soft = prepared_share(0, limit(50, 20))
    shares = (soft, replace(soft, isolation=Isolation.HARD), prepared_share(2, None))

    claims = [prepared_claim(*shares, enforcer=name) for name in ("tensor-fusion", "mps")]

    assert [list(marks.soft_shares(claim)) for claim in claims] == [[soft], []]


def test_running_pod_whose_folder_was_replaced_is_left_alone(node: WorkerNode) -> None:
    """Its containers keep the folder that they have mounted, so only a new pod helps."""
    pod, ref = node.run()
    node.pods.set_phase("train", "Running")
    folder = node.hypervisor.file(pod).parent
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("mounted"))
    folder.with_name("copy").rename(folder)

    node.repair(3)

    assert node.refused(ref).endswith("expected the same; delete the pod")
    assert len(node.pods.patches) == 1
    assert node.setup.unprepare(ref) == {ref.uid: None}
    assert not folder.exists()
