"""Prepare and unprepare of claims: files, limits, other allocations, and other instances."""

import io
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.publish import CatalogBuilder, DeviceCatalog
from tests.faults import invariants
from tests.support.builders.devices import NODE
from tests.support.logs import capture_logs
from tests.support.ports import ClaimsInMemory, EventsInMemory
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
    Setup,
    error_of,
    limits_document,
    limits_of,
    put_annotated_claim,
    put_claim,
    real_gpu,
    share_result,
    simulated_inventory,
    spec_file,
    use_real_cards,
)
from tests.support.threads import running
from tests.support.waiting import PATIENCE_SECONDS, eventually

LIMIT = "tensor-fusion.ai/vram-limit"
WANTS_ALL = {LIMIT: "80Gi"}


@pytest.fixture
def ref(setup: Setup) -> ClaimRef:
    """A claim for a part of GPU 0, which is not prepared yet."""
    return put_claim(setup, "a", share_result())


def test_allocated_claim_is_recorded_and_gets_a_spec_with_its_limits(
    setup: Setup, ref: ClaimRef
) -> None:

    assert setup.prepared(ref) == setup.record(ref)
    limits = next(d for d in setup.spec_of(ref)["devices"] if d["name"].endswith(":limits"))
    env = {"TF_CUDA_SM_PERCENT_LIMIT=33", "TF_GPU_MEMORY_LIMIT=16384"}
    assert env <= {*limits["containerEdits"]["env"]}


def test_repeated_call_reads_the_claim_again_needs_no_lock_or_restores_the_spec(
    setup: Setup, ref: ClaimRef, other: Setup
) -> None:
    first, files = setup.prepare(ref), setup.files()

    with other.store.transaction():
        assert setup.prepare(ref) == first
    (setup.cdi_folder / spec_file(ref.uid)).unlink()

    assert (setup.prepare(ref), setup.files()) == (first, files)
    assert setup.claims.fetched == ["default/a"] * 3


def test_everything_is_read_before_the_store_is_locked(
    setup: Setup, ref: ClaimRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_real_cards(setup)
    looked_up: list[str] = []
    transaction = setup.store.transaction

    @contextmanager
    def watched() -> Iterator[Any]:
        with transaction() as records, monkeypatch.context() as patch:
            for where, name in ((setup.device_nodes, "of_card"), (setup.host_files, "missing")):
                patch.setattr(where, name, lambda *_, name=name: looked_up.append(name))
            yield records

    monkeypatch.setattr(setup.store, "transaction", watched)
    setup.prepared(ref)

    assert looked_up == []


def test_unprepare_removes_spec_and_record_and_may_be_repeated(setup: Setup, ref: ClaimRef) -> None:
    setup.prepare(ref)
    setup.claims.away = True

    assert [setup.unprepare(ref), setup.unprepare(ref)] == [{ref.uid: None}] * 2
    assert (setup.store.claims(), setup.files()) == ([], {})


def test_unprepare_removes_files_and_then_the_record_in_one_transaction(
    setup: Setup, ref: ClaimRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.prepare(ref)
    seen: list[tuple[dict[str, bytes], bool]] = []
    transaction = setup.store.transaction

    @contextmanager
    def watched() -> Iterator[Any]:
        with transaction() as records:
            yield records
            seen.append((setup.files(), (setup.folder / "plugin" / "claims").exists()))
            assert [*(setup.folder / "plugin" / "claims").glob(f"{ref.uid}*")]

    monkeypatch.setattr(setup.store, "transaction", watched)
    setup.unprepare(ref)

    assert seen == [({}, True)]
    assert not [*(setup.folder / "plugin" / "claims").glob(f"{ref.uid}*")]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (
            [share_result(pool="default/node-02")],
            r"pool default/node-02, this node's is default/node-01",
        ),
        ([share_result("gpu-unknown")], rf"device gpu-unknown unknown, this node has .*{GPU_0}"),
        ([share_result(tflops="-100")], r"tflops: found -100, expected 0 or more"),
        ([share_result(vram="many")], r"vram: found 'many', expected a quantity"),
        ([share_result(vram=None)], r"vram: found no consumed capacity"),
        ([share_result(tflops="313")], r"tflops: found 313 plus 0 in use, expected at most 312"),
        (
            [share_result(vram="48Gi"), share_result(vram="48Gi")],
            r"vram: found 48Gi plus 48Gi in use, expected at most 80Gi",
        ),
        ([share_result(device=None)], r"device: found None, expected a name"),
    ],
)
def test_impossible_allocation_is_refused_and_leaves_no_record_or_spec(
    setup: Setup, results: list[dict[str, Any]], expected: str
) -> None:
    text = setup.refused(put_claim(setup, "bad", *results))

    assert re.search(f"^claim default/bad: .*{expected}", text), text
    assert (setup.store.claims(), setup.files()) == ([], {})


def test_call_waits_for_an_earlier_call_of_the_same_claim_until_its_deadline(
    setup: Setup, ref: ClaimRef
) -> None:
    requested, answer = Event(), Event()
    fetch = setup.claims.fetch

    class SlowClaims(ClaimsInMemory):
        def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Any:
            requested.set()
            answer.wait(PATIENCE_SECONDS)
            return fetch(ref, wait_seconds=wait_seconds)

    slow = setup.with_claims(SlowClaims())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.prepare, [ref], deadline=time.monotonic() + PATIENCE_SECONDS)
        requested.wait(PATIENCE_SECONDS)

        second = slow.prepare([ref], deadline=time.monotonic() + 0.1)[ref.uid]
        answer.set()

        assert "another call for it is still running" in error_of(second)
        assert isinstance(first.result()[ref.uid], PreparedClaim)


def test_concurrent_calls_never_admit_more_than_the_card_has(setup: Setup) -> None:
    refs = [put_claim(setup, f"c{n}", share_result(tflops="50", vram="1Gi")) for n in range(16)]

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda ref: setup.prepare(ref)[ref.uid], refs))

    admitted = [each for each in outcomes if isinstance(each, PreparedClaim)]
    assert len(admitted) == len(setup.store.claims()) == 6  # 6 x 50 of 312


def test_pods_of_a_claim_are_read_once_each_and_only_if_a_value_is_open(setup: Setup) -> None:
    silent = put_claim(setup, "silent", share_result())
    parameters = put_claim(setup, "parameters", share_result(tflops="1", vram="1Gi"))
    share = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "limits": {"tflops": "1", "vram": "1Gi"},
        "isolation": "soft",
        "qos": "low",
    }
    opaque = {"driver": "tensor-fusion.ai.dra-driver", "parameters": share}
    devices = setup.claims.stored[str(parameters)]["status"]["allocation"]["devices"]
    devices["config"] = [{"source": "FromClass", "requests": [], "opaque": opaque}]
    annotated = put_annotated_claim(setup, "annotated", {LIMIT: "2Gi"}, tflops="1", vram="1Gi")

    for each in (silent, parameters, annotated):
        setup.prepared(each)

    assert setup.pods.pods_read == ["default/silent"]


def test_claim_gets_the_present_device_node_of_its_card_and_fails_without_one(
    setup: Setup, ref: ClaimRef
) -> None:
    first, second = simulated_inventory().gpus
    setup.use_cards(real_gpu(first, minor=None))
    assert "found no minor number" in setup.refused(ref)

    setup.use_cards(real_gpu(first, minor=0), real_gpu(second, minor=1))
    setup.device_nodes.missing = {0}
    assert "/dev/nvidia0" in setup.refused(ref)

    setup.device_nodes.missing = set()
    seen = []
    for minors in ((0, 1), (1, 0)):
        setup.use_cards(real_gpu(first, minor=minors[0]), real_gpu(second, minor=minors[1]))
        setup.prepared(ref)
        spec = setup.spec_of(ref)
        edits = (spec["containerEdits"], spec["devices"][0]["containerEdits"])
        seen.append([node["path"] for each in edits for node in each["deviceNodes"]])

    common = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert seen == [[*common, "/dev/nvidia0"], [*common, "/dev/nvidia1"]]


def test_claim_fails_while_the_cdi_folder_cannot_be_written(setup: Setup, ref: ClaimRef) -> None:
    setup.cdi_folder.write_text("a file where the folder should be")

    assert str(setup.cdi_folder) in setup.refused(ref)
    setup.cdi_folder.unlink()
    setup.prepared(ref)
    assert setup.spec_of(ref) is not None


def test_claim_fails_before_the_first_reading_of_the_cards(setup: Setup, ref: ClaimRef) -> None:
    preparer = setup.with_claims(setup.claims, DeviceCatalog())

    outcome = preparer.prepare([ref], deadline=time.monotonic() + 0.2)[ref.uid]

    assert "GPUs could not be read yet" in error_of(outcome)


def test_missing_card_fails_only_its_own_claims(setup: Setup, ref: ClaimRef) -> None:
    new, on_other_card = (
        put_claim(setup, name, share_result(device))
        for name, device in (("b", GPU_0), ("c", GPU_1))
    )
    setup.prepare(ref)
    setup.use_cards(*simulated_inventory().gpus[1:])

    outcomes = setup.prepare(ref, new, on_other_card)

    text = f"{GPU_0}: the GPU is gone from the node, expected a working GPU"
    for each in (ref, new):
        assert error_of(outcomes[each.uid]) == f"claim {each}: {text}"
    assert isinstance(outcomes[on_other_card.uid], PreparedClaim)
    assert setup.unprepare(ref) == {ref.uid: None}


def test_claim_on_a_sick_but_present_card_is_prepared(setup: Setup, ref: ClaimRef) -> None:
    setup.discovery.inventory = None
    for _ in range(3):  # the driver hangs
        with suppress(RetryableError):
            setup.cards.refresh()

    assert set(setup.catalog.unhealthy()) == {GPU_0, GPU_1}
    setup.prepared(ref)


# What a share gets


def vram_gib(setup: Setup, ref: ClaimRef) -> list[float]:
    """Return the memory limits of a claim in its record, which are those of its document too."""
    record = setup.record(ref)
    assert record is not None
    limits = [share.limit.vram_bytes for share in record.shares if share.limit]
    assert [each["vramBytes"] for each in limits_of(setup, ref)] == limits
    return [each / GIB for each in limits]


def test_claim_without_annotations_gets_the_smallest_limits_of_its_pods_with_a_log_line(
    setup: Setup,
) -> None:
    ref = put_claim(setup, "a", share_result(), pods=["p", "q"])
    setup.pods.stored = {
        "default/p": {"tensor-fusion.ai/tflops-limit": "156", LIMIT: "40Gi"},
        "default/q": {LIMIT: "24Gi"},
    }

    with capture_logs() as logs:
        setup.prepared(ref)

    (limits,) = limits_of(setup, ref)
    assert limits == {"smPercent": 50, "vramBytes": 24 * GIB, "clamped": False}
    assert "shared_claim_uses_smallest_limits" in [line["event"] for line in logs]


def test_claims_get_the_isolation_of_the_nodes_pool_unless_they_choose_a_softer_one(
    setup: Setup,
) -> None:
    """What a claim got it keeps, since its containers run."""
    setup.cards.set_node(replace(NODE, isolation=Isolation.HARD))
    cards = {"a": GPU_0, "b": GPU_0, "c": GPU_1}
    refs = [put_claim(setup, name, share_result(card)) for name, card in cards.items()]
    for ref, isolation in zip(refs[1:], ("hard", "soft"), strict=True):
        setup.annotate(ref, isolation=isolation)

    shares = [setup.prepared(ref).shares[0] for ref in refs]
    files = setup.files()
    after = setup.restarted()
    after.recover()
    after.prepare(*refs)

    assert [each.isolation for each in shares] == [Isolation.HARD, Isolation.HARD, Isolation.SOFT]
    assert after.files() == files


def test_pods_of_one_claim_share_the_folder_and_name_of_the_first_pod(setup: Setup) -> None:
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result(), pods=["zebra", "ape"])

    with capture_logs() as logs:
        setup.prepare(ref)
    files = setup.files()
    after = setup.restarted()
    after.recover()

    folder = "/run/tensor-fusion/shm/default/zebra"
    edits = setup.spec_of(ref)["devices"][1]["containerEdits"]
    assert "POD_NAME=zebra" in edits["env"]
    assert folder in [mount["hostPath"] for mount in edits["mounts"]]
    assert setup.host_files.folders == after.host_files.folders == {folder}
    assert after.files() == files
    (line,) = [line for line in logs if line["event"] == "claim_prepared"]
    assert (line["pod"], line["pods"]) == ("default/zebra", 2)


def test_driver_libraries_come_from_the_toolkit_or_mounts_or_the_claim_fails(
    setup: Setup,
) -> None:
    use_real_cards(setup)
    first = simulated_inventory().gpus[0].uuid
    by_mounts, by_toolkit, neither = (
        put_claim(setup, name, share_result(tflops="1", vram="1Gi"))
        for name in ("mounts", "toolkit", "neither")
    )
    setup.prepared(by_mounts)
    setup.driver_files.by_toolkit = {first}
    (share,) = setup.prepared(by_toolkit).shares
    setup.driver_files.by_toolkit, setup.driver_files.missing = set(), True

    assert "libcuda.so.1: not found" in setup.refused(neither)
    (mount,) = setup.spec_of(by_mounts)["containerEdits"]["mounts"]
    assert mount["hostPath"] == "/host/libcuda.so.1"
    assert share.toolkit_device == f"nvidia.com/gpu={first}"
    assert "mounts" not in setup.spec_of(by_toolkit)["containerEdits"]


def prepare_borrower(setup: Setup, name: str = "a") -> ClaimRef:
    """Prepare a claim for 10Gi that would like all memory of GPU 0."""
    return setup.prepared(put_annotated_claim(setup, name, WANTS_ALL, vram="10Gi")).ref


def running_follower(setup: Setup) -> AbstractContextManager[object]:
    follower = setup.follower(setup.status, EventsInMemory())
    return running(follower.run, stop=follower.stop)


def set_card_memory(setup: Setup, gib: int) -> None:
    """Change the memory of the node's cards."""
    setup.use_cards(*(replace(gpu, vram_bytes=gib * GIB) for gpu in simulated_inventory().gpus))


def test_limits_shrink_and_grow_with_the_capacity_also_after_failed_writes(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = prepare_borrower(setup)
    failures = iter([RetryableError("the disk is full")] * 2)
    transaction = setup.store.transaction

    def failing() -> Any:
        for error in failures:
            raise error
        return transaction()

    monkeypatch.setattr(setup.store, "transaction", failing)
    with capture_logs() as logs, running_follower(setup):
        for gib in (40, 80):
            set_card_memory(setup, gib)
            assert eventually(lambda: f"={gib * 1024}" in str(setup.spec_of(ref)))  # noqa: B023
            assert vram_gib(setup, ref) == [gib]

    assert [line["event"] for line in logs].count("catalog_retried") == 2


def test_memory_of_a_claim_unprepared_before_the_first_reading_is_lent_at_once(
    setup: Setup,
) -> None:
    first = prepare_borrower(setup)
    second = put_claim(setup, "b", share_result(GPU_0, tflops="1", vram="60Gi"))
    setup.prepare(second)
    assert vram_gib(setup, first) == [20]
    after = setup.restarted()
    after.discovery.inventory = None
    after.use(cards=CatalogBuilder(after.discovery, NODE))

    after.unprepare(second)

    assert vram_gib(after, first) == [80]


def test_rules_changed_over_a_restart_apply_to_existing_claims(tmp_path: Path) -> None:
    setup = Setup(tmp_path, overcommit_limits=True)
    refs = [prepare_borrower(setup, name) for name in "ab"]
    assert [vram_gib(setup, ref) for ref in refs] == [[80], [80]]

    after = setup.restarted()
    found = after.recover()

    assert [vram_gib(after, ref) for ref in refs] == [[70], [10]]
    assert {record.ref for record in found.rewritten} == {*refs}


# Another allocation of the same claim


def reallocate(setup: Setup, ref: ClaimRef, *results: Any) -> None:
    """Allocate the same claim for another pod, as the scheduler does."""
    put_claim(setup, ref.name, *results, uid=ref.uid, pods=["other"])


def test_reallocated_claim_gets_its_new_card_share_and_pod_and_frees_the_old(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result(vram="60Gi"))
    beside = put_annotated_claim(setup, "beside", WANTS_ALL, vram="20Gi")
    setup.prepare(ref, beside)
    new = share_result(GPU_1, vram="8Gi")
    reallocate(setup, ref, new)

    with capture_logs() as logs:
        record = setup.prepared(ref)

    assert [(s.device, s.share_id) for s in record.shares] == [(GPU_1, new["shareID"])]
    assert [pod.name for pod in record.pods] == ["other"]
    assert limits_document(setup, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]
    assert (new["shareID"] in str(setup.spec_of(ref)), GPU_0 in str(setup.spec_of(ref))) == (
        True,
        False,
    )
    assert setup.record(ref) == record
    assert "claim_reallocated" in [line["event"] for line in logs]
    assert vram_gib(setup, beside) == [80]
    setup.prepared(put_claim(setup, "third", share_result(tflops="100", vram="60Gi")))


def test_earlier_share_is_not_restored_if_the_new_one_does_not_fit(
    setup: Setup, ref: ClaimRef
) -> None:
    setup.prepare(ref)
    setup.prepared(put_claim(setup, "whole", share_result(GPU_1, tflops="312", vram="80Gi")))
    reallocate(setup, ref, share_result(GPU_1))

    assert "in use, expected at most 312" in setup.refused(ref)
    assert (setup.record(ref), setup.spec_of(ref)) == (None, None)


def test_shared_claim_is_prepared_for_its_remaining_pods(setup: Setup) -> None:
    result = share_result()
    ref = put_claim(setup, "a", result)
    first = setup.prepared(ref)
    reallocate(setup, ref, result)

    record = setup.prepared(ref)

    assert record == replace(first, pods=record.pods)
    assert [str(pod) for pod in record.pods] == ["default/other"]
    assert limits_document(setup, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]


@pytest.mark.parametrize("status", [{}, {"allocation": None, "reservedFor": []}])
def test_deallocated_claim_fails_and_keeps_its_record(
    setup: Setup, ref: ClaimRef, status: dict[str, Any]
) -> None:
    record = setup.prepared(ref)
    setup.claims.put({**setup.claims.stored[str(ref)], "status": status})

    assert "found no allocation" in setup.refused(ref)
    assert setup.record(ref) == record


def test_record_that_may_be_outdated_is_not_returned_without_the_api_server(
    setup: Setup, ref: ClaimRef
) -> None:
    record, files = setup.prepared(ref), setup.files()
    setup.claims.away = True

    assert "no answer" in setup.refused(ref)
    setup.claims.away = False
    assert (setup.files(), setup.prepared(ref)) == (files, record)


# Another instance on the same node, as in a rolling update


@pytest.fixture
def other(setup: Setup) -> Setup:
    return Setup(setup.folder, setup.claims)


@pytest.mark.parametrize("by_another_instance", [False, True])
def test_files_are_those_of_the_newest_record(
    setup: Setup, other: Setup, by_another_instance: bool
) -> None:
    first = put_annotated_claim(setup, "a", WANTS_ALL, tflops="1", vram="20Gi")
    second = put_claim(setup, "b", share_result(tflops="1", vram="50Gi"))
    by = other if by_another_instance else setup
    setup.host_files.before_write = lambda: by.prepare(second)

    (share,) = setup.prepared(first).shares

    assert share.limit is not None
    assert vram_gib(setup, first) == [share.limit.vram_bytes / GIB] == [30]


def test_claim_that_another_instance_unprepared_leaves_no_files(
    setup: Setup, ref: ClaimRef, other: Setup
) -> None:
    setup.host_files.before_write = lambda: other.unprepare(ref)

    assert setup.refused(ref) == "claim default/a: it was unprepared meanwhile"

    assert (setup.files(), setup.store.claims()) == ({}, [])


def test_claim_whose_limits_are_followed_while_it_is_unprepared_leaves_no_files(
    setup: Setup, ref: ClaimRef
) -> None:
    record = setup.prepared(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()  # so that following has something to write
    setup.host_files.before_write = lambda: setup.unprepare(ref)

    setup.upkeep().update([record])

    assert (setup.files(), setup.store.claims()) == ({}, [])


def test_temporary_file_that_a_recovery_removed_is_written_again(
    setup: Setup, ref: ClaimRef, other: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.prepared(put_claim(setup, "first", share_result(vram="1Gi")))  # makes the folders
    fchmod = os.fchmod

    def recover_before(descriptor: int, mode: int) -> None:
        monkeypatch.setattr(os, "fchmod", fchmod)
        other.node_files.remove_unfinished()
        fchmod(descriptor, mode)

    setup.host_files.before_write = lambda: monkeypatch.setattr(os, "fchmod", recover_before)

    setup.prepared(ref)

    assert setup.spec_of(ref) is not None
    assert limits_of(setup, ref) != []


def test_ten_prepares_and_unprepares_through_each_of_two_instances(
    setup: Setup, other: Setup
) -> None:
    # Each claim is one instance's; both have claims on both cards.
    small = {"tflops": "1", "vram": "2Gi"}
    refs = [
        put_annotated_claim(setup, f"c{n}", WANTS_ALL, device=(GPU_0, GPU_1)[n // 10], **small)
        for n in range(20)
    ]

    def use(node: Setup, part: int) -> None:
        for ref in refs[part::2]:
            node.prepared(ref)
        for ref in refs[part::4]:
            assert node.unprepare(ref) == {ref.uid: None}

    with ThreadPoolExecutor(2) as instances:
        list(instances.map(use, (setup, other), (0, 1)))

    claims = setup.store.claims()
    assert claims == other.store.claims()
    assert {claim.ref for claim in claims} == {*refs} - {*refs[0::4], *refs[1::4]}
    assert list(invariants.over_capacity({claim.ref.uid: claim for claim in claims})) == []
    # The one ends; the other has all claims, and frees those of both.
    setup.store.close()
    other.unprepare(*refs)
    assert other.store.claims() == []


def counted(patch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Return a list that gets each call that opens, stats or lists something in the folder."""
    found: list[str] = []

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counts(path: Any, *arguments: Any, **more: Any) -> Any:
            if str(path).startswith(str(folder)):
                found.append(f"{name} {Path(path).name}")
            return call(path, *arguments, **more)

        return counts

    for module, names in ((os, ("open", "stat", "lstat", "listdir", "scandir")), (io, ("open",))):
        for name in names:
            patch.setattr(module, name, counting(name, getattr(module, name)))
    return found


def test_prepare_beside_many_records_reads_none_of_them(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    *held, last = (
        put_annotated_claim(
            setup, f"c{n}", {}, device=(GPU_0, GPU_1)[n % 2], tflops="0", vram="1Mi"
        )
        for n in range(50)
    )
    setup.prepare(*held)
    monkeypatch.setattr(PreparedClaim, "from_json", None)
    calls = []

    with monkeypatch.context() as patch:
        found = counted(patch, setup.folder / "plugin")
        for act in (setup.prepare, setup.prepare, setup.unprepare):
            act(last)
            calls.append([each for each in found if ".tmp" not in each])
            found.clear()

    # To flush the file, flush its folder, and see that nobody has replaced it meanwhile.
    new = f"{last.uid}.new"
    first = [f"open {new}", "open claims", f"stat {new}"]
    assert calls == [first, [], ["open claims"]]


# Containers whose limits would mix, or would not add up, and are refused: variables cannot hold the
# limits of two claims in one container, and an enforcer that tells processes apart by their PIDs
# cannot add up those of two containers.

IN_ONE = (("a", "b"),)
IN_TWO = (("a",), ("b",))


@pytest.fixture
def hami(setup: Setup) -> Setup:
    """A node whose claims get HAMi-core."""
    setup.use(enforcer=HAMI_CORE)
    return setup


def put_claim_of_pod(
    setup: Setup, name: str, device: str, *, pod: str = "p", **more: Any
) -> ClaimRef:
    """Store a claim that is reserved for the pod, and return its reference."""
    return put_claim(setup, name, share_result(device, **more), pods=[pod])


def put_pod_with_containers(setup: Setup, *uses: tuple[str, ...], pod: str = "p") -> None:
    """Store a pod with one container for each of these groups of claims."""
    names = sorted({name for group in uses for name in group})
    setup.pods.documents[f"default/{pod}"] = {
        "spec": {
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
            "containers": [
                {"name": f"c{index}", "resources": {"claims": [{"name": n} for n in group]}}
                for index, group in enumerate(uses)
            ],
        }
    }


@pytest.mark.parametrize("enforcer", [HAMI_CORE, MPS])
@pytest.mark.parametrize("device", [GPU_0, GPU_1], ids=["one card", "two cards"])
def test_second_claim_of_a_container_is_refused_with_the_first_claim_and_a_remedy(
    setup: Setup, enforcer: Enforcer, device: str
) -> None:
    setup.use(enforcer=enforcer)
    first = put_claim_of_pod(setup, "a", GPU_0)
    second = put_claim_of_pod(setup, "b", device, vram="8Gi")
    put_pod_with_containers(setup, *IN_ONE)

    setup.prepared(first)
    assert setup.refused(second) == (
        "claim default/b: found claim default/a in the same container, expected one claim for "
        "each container: its enforcer cannot tell two claims apart; ask for its GPUs in "
        "one claim with several requests"
    )
    assert setup.spec_of(second) is None


@pytest.mark.parametrize(
    ("enforcer", "uses", "asks", "reads_pods"),
    [
        (HAMI_CORE, IN_TWO, {}, True),
        (MPS, IN_TWO, {}, True),
        (TENSOR_FUSION, IN_ONE, {}, False),
        (HAMI_CORE, IN_ONE, {"tflops": "312", "vram": "80Gi"}, True),
    ],
    ids=["a container each", "a container each", "limits by card", "no limits"],
)
def test_claims_whose_limits_cannot_mix_are_prepared(
    setup: Setup,
    enforcer: Enforcer,
    uses: tuple[tuple[str, ...], ...],
    asks: dict[str, str],
    reads_pods: bool,
) -> None:
    setup.use(enforcer=enforcer)
    put_pod_with_containers(setup, *uses)

    for name, device in (("a", GPU_0), ("b", GPU_1)):
        ref = put_claim_of_pod(setup, name, device, **asks)
        setup.annotate(ref, isolation="shared" if asks else "soft")  # so the pod's are not needed
        setup.prepared(ref)
    assert bool(setup.pods.pods_read) is reads_pods


def test_refusal_survives_a_restart_and_ends_with_the_first_claim(hami: Setup) -> None:
    first, second = put_claim_of_pod(hami, "a", GPU_0), put_claim_of_pod(hami, "b", GPU_1)
    put_pod_with_containers(hami, *IN_ONE)
    hami.prepare(first, second)

    after = hami.restarted()
    after.use(pods=hami.pods)

    assert "found claim default/a in the same container" in after.refused(second)
    after.prepared(first)
    after.unprepare(second, first)
    after.prepared(second)


def test_shared_claim_counts_in_the_containers_of_each_of_its_pods(hami: Setup) -> None:
    """The record of `a` names the pod for which it was prepared, but not later pods."""
    first = put_claim_of_pod(hami, "a", GPU_0, pod="earlier")
    put_pod_with_containers(hami, ("a",), pod="earlier")
    hami.prepare(first)
    second = put_claim_of_pod(hami, "b", GPU_1, pod="later")
    put_pod_with_containers(hami, *IN_ONE, pod="later")

    assert "found claim default/a in the same container" in hami.refused(second)


def test_pod_may_have_one_claim_if_pods_cannot_be_read(hami: Setup) -> None:
    hami.use(reads_pods=False)
    first, second = put_claim_of_pod(hami, "a", GPU_0), put_claim_of_pod(hami, "b", GPU_1)
    of_another_pod = put_claim_of_pod(hami, "c", GPU_1, pod="q")

    hami.prepared(first)
    hami.prepared(of_another_pod)
    error = hami.refused(second)
    assert "found claim default/a for the same pod, expected one claim for each pod" in error
    assert "(--read-pods)" in error


def test_containers_that_use_a_claim_at_once_are_refused_where_pids_tell_processes_apart(
    hami: Setup,
) -> None:
    ref = put_claim_of_pod(hami, "a", GPU_0)
    put_pod_with_containers(hami, ("a",), ("a",))

    error = hami.refused(ref)

    assert "found containers c0 and c1" in error
    assert "shareProcessNamespace: true" in error
    hami.use(enforcer=MPS)
    hami.prepared(ref)
