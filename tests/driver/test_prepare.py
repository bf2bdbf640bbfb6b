"""Prepare and unprepare of claims."""

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver.publish import DeviceCatalog
from tests.support.builders.devices import NODE
from tests.support.builders.stored_claims import stored_claim
from tests.support.ports import ClaimsInMemory, FixedDiscovery
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
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
from tests.support.waiting import PATIENCE_SECONDS


def test_allocated_claim_is_recorded_and_gets_a_spec_with_its_limits(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())

    record = setup.prepared(ref)

    assert setup.record(ref) == record
    limits = next(d for d in setup.spec_of(ref)["devices"] if d["name"].endswith(":limits"))
    assert "TF_CUDA_SM_PERCENT_LIMIT=33" in limits["containerEdits"]["env"]
    assert "TF_GPU_MEMORY_LIMIT=16384" in limits["containerEdits"]["env"]


def test_repeated_call_gets_the_same_answer_and_reads_the_claim_again(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    first = setup.prepare(ref)

    again = setup.prepare(ref)

    assert again == first
    assert setup.claims.fetched == ["default/a", "default/a"]


def test_repeated_call_is_answered_while_another_instance_has_the_lock_of_the_store(
    setup: Setup, other: Setup
) -> None:
    ref = put_claim(setup, "a", share_result())
    first = setup.prepare(ref)

    with other.ledger.transaction():
        again = setup.prepare(ref)

    assert again == first


def test_everything_is_read_before_the_store_is_locked(
    setup: Setup, other: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())
    looked_up: list[str] = []
    transaction = setup.ledger.transaction

    @contextmanager
    def watched() -> Iterator[Any]:
        with transaction() as records, monkeypatch.context() as patch:
            for where, name in ((setup.device_nodes, "of_card"), (setup.host_files, "missing")):
                patch.setattr(where, name, lambda *_, name=name: looked_up.append(name))
            yield records

    monkeypatch.setattr(setup.ledger, "transaction", watched)
    setup.prepared(ref)

    assert looked_up == []


def test_vanished_spec_is_written_again_by_the_next_call(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    spec = setup.spec_of(ref)
    (setup.cdi_folder / spec_file(ref.uid)).unlink()

    setup.prepare(ref)

    assert setup.spec_of(ref) == spec


def test_unprepare_removes_spec_and_record_and_may_be_repeated(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    setup.claims.away = True

    outcomes = [setup.unprepare(ref), setup.unprepare(ref)]

    assert outcomes == [{ref.uid: None}] * 2
    assert setup.record(ref) is None
    assert setup.spec_of(ref) is None


def test_bad_claim_does_not_fail_other_claims_of_the_call(setup: Setup) -> None:
    good = put_claim(setup, "good", share_result())
    bad = ClaimRef(namespace="default", name="missing", uid="uid-missing")

    outcomes = setup.prepare(bad, good)

    assert isinstance(outcomes[good.uid], PreparedClaim)
    assert error_of(outcomes[bad.uid]) == "claim default/missing: found none"


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
    ref = put_claim(setup, "bad", *results)

    text = setup.refused(ref)

    assert text.startswith("claim default/bad: ")
    assert re.search(expected, text), text
    assert setup.ledger.claims() == []
    assert setup.spec_of(ref) is None


@pytest.mark.parametrize("uid", ["../../etc/cron.d/x", "a/b", "", "x" * 64, "ümlaut", "a\n"])
def test_uid_that_is_no_file_name_is_refused_and_unprepared_as_unknown(
    setup: Setup, uid: str
) -> None:
    ref = ClaimRef(namespace="default", name="a", uid=uid)

    outcome = setup.prepare(ref)[uid]

    assert "UID" in error_of(outcome)
    assert setup.claims.fetched == []
    assert setup.unprepare(ref) == {uid: None}


def test_call_waits_for_an_earlier_call_of_the_same_claim_until_its_deadline(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
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
    assert len(admitted) == 6  # 6 x 50 of 312
    assert len(setup.ledger.claims()) == 6


def test_pods_of_a_claim_are_read_once_each_and_only_if_a_value_is_open(setup: Setup) -> None:
    silent = put_claim(setup, "silent", share_result())
    parameters = put_claim(setup, "parameters", share_result(tflops="1", vram="1Gi"))
    stored = setup.claims.stored[str(parameters)]
    whole = {"limits": {"tflops": "1", "vram": "1Gi"}, "isolation": "soft", "qos": "low"}
    kind = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare"}
    opaque = {"driver": "tensor-fusion.ai.dra-driver", "parameters": kind | whole}
    stored["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClass", "requests": [], "opaque": opaque}
    ]
    annotated = put_annotated_claim(setup, "annotated", {LIMIT: "2Gi"}, tflops="1", vram="1Gi")

    for ref in (silent, parameters, annotated):
        setup.prepared(ref)

    assert setup.pods.pods_read == [f"default/{silent.name}"]


def test_claim_fails_until_its_device_node_exists(setup: Setup) -> None:
    use_real_cards(setup)
    setup.device_nodes.missing = {0}
    ref = put_claim(setup, "a", share_result())

    assert "/dev/nvidia0" in setup.refused(ref)
    setup.device_nodes.missing = set()
    assert setup.prepared(ref).shares[0].device_nodes == ("/dev/nvidia0",)
    assert setup.spec_of(ref)["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl"},
        {"path": "/dev/nvidia-uvm"},
    ]


def test_claim_of_a_real_card_without_a_minor_number_fails(setup: Setup) -> None:
    setup.use_cards(*(real_gpu(gpu, minor=None) for gpu in simulated_inventory().gpus))
    ref = put_claim(setup, "a", share_result())

    assert "found no minor number" in setup.refused(ref)


def test_changed_minor_number_gives_the_new_device_node(setup: Setup) -> None:
    first, second = simulated_inventory().gpus
    setup.use_cards(real_gpu(first, minor=0), real_gpu(second, minor=1))
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    setup.use_cards(real_gpu(first, minor=1), real_gpu(second, minor=0))

    setup.prepare(ref)

    nodes = setup.spec_of(ref)["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes == [{"path": "/dev/nvidia1"}]


def test_claim_fails_while_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.cdi_folder.write_text("a file where the folder should be")

    assert str(setup.cdi_folder) in setup.refused(ref)
    setup.cdi_folder.unlink()
    setup.prepared(ref)
    assert setup.spec_of(ref) is not None


def test_claim_fails_before_the_first_reading_of_the_cards(setup: Setup, tmp_path: Path) -> None:
    without_cards = DeviceCatalog(FixedDiscovery(None), NODE)
    preparer = setup.with_claims(setup.claims, without_cards)
    ref = put_claim(setup, "a", share_result())

    outcome = preparer.prepare([ref], deadline=time.monotonic() + 0.2)[ref.uid]

    assert "GPUs could not be read yet" in error_of(outcome)


def test_missing_card_fails_only_its_own_claims(setup: Setup) -> None:
    known, new = put_claim(setup, "a", share_result()), put_claim(setup, "b", share_result())
    on_other_card = put_claim(setup, "c", share_result(GPU_1))
    setup.prepare(known)
    setup.use_cards(*simulated_inventory().gpus[1:])

    outcomes = setup.prepare(known, new, on_other_card)

    text = f"{GPU_0}: the GPU is gone from the node, expected a working GPU"
    assert error_of(outcomes[known.uid]) == f"claim default/a: {text}"
    assert error_of(outcomes[new.uid]) == f"claim default/b: {text}"
    assert isinstance(outcomes[on_other_card.uid], PreparedClaim)
    assert setup.unprepare(known) == {known.uid: None}


def test_claim_on_a_sick_but_present_card_is_prepared(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.discovery.inventory = None
    for _ in range(3):  # the driver hangs
        with pytest.raises(RetryableError):
            setup.catalog.refresh()

    assert set(setup.catalog.unhealthy()) == {GPU_0, GPU_1}
    setup.prepared(ref)


LIMIT = "tensor-fusion.ai/vram-limit"


def reallocate(setup: Setup, ref: ClaimRef, *results: Any, pod: str = "other") -> None:
    """Allocate the same claim for another pod, as the scheduler does."""
    claim = stored_claim(ref.name, *results, uid=ref.uid)
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"}]
    setup.claims.put(claim)


def pods_of(record: PreparedClaim) -> list[str]:
    return [pod.name for pod in record.pods]


def test_reallocated_claim_gets_its_new_card_share_and_pod(
    setup: Setup,
) -> None:
    ref = put_claim(setup, "a", share_result(GPU_0))
    setup.prepare(ref)
    new = share_result(GPU_1, vram="8Gi")
    reallocate(setup, ref, new)

    with capture_logs() as logs:
        record = setup.prepared(ref)

    assert [(s.device, s.share_id) for s in record.shares] == [(GPU_1, new["shareID"])]
    assert pods_of(record) == ["other"]
    assert limits_document(setup, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]
    assert new["shareID"] in str(setup.spec_of(ref))
    assert GPU_0 not in str(setup.spec_of(ref))
    assert setup.ledger.claims() == [record]
    assert "claim_reallocated" in [line["event"] for line in logs]


def test_share_of_the_earlier_allocation_is_released_and_lent(
    setup: Setup,
) -> None:
    ref = put_claim(setup, "a", share_result(GPU_0, vram="60Gi"))
    beside = stored_claim("beside", share_result(GPU_0, vram="20Gi"))
    beside["metadata"]["annotations"] = {LIMIT: "80Gi"}
    other = setup.claims.put(beside)
    setup.prepare(ref, other)
    reallocate(setup, ref, share_result(GPU_1))

    setup.prepared(ref)

    (limits,) = limits_of(setup, other)
    assert limits["vramBytes"] == 80 * 2**30
    third = put_claim(setup, "third", share_result(GPU_0, tflops="100", vram="60Gi"))
    setup.prepared(third)


def test_earlier_share_is_not_restored_if_the_new_one_does_not_fit(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result(GPU_0))
    setup.prepare(ref)
    setup.prepared(put_claim(setup, "whole", share_result(GPU_1, tflops="312", vram="80Gi")))
    reallocate(setup, ref, share_result(GPU_1))

    assert "in use, expected at most 312" in setup.refused(ref)
    assert setup.record(ref) is None
    assert setup.spec_of(ref) is None


def test_shared_claim_is_prepared_for_its_remaining_pods(setup: Setup) -> None:
    results = [share_result(GPU_0)]
    ref = put_claim(setup, "a", *results)
    first = setup.prepared(ref)
    reallocate(setup, ref, *results)

    record = setup.prepared(ref)

    assert record.shares == first.shares
    assert record.sequence == first.sequence
    assert record.pods == (PodRef(namespace="default", name="other", uid="uid-of-other"),)
    assert limits_document(setup, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]


@pytest.mark.parametrize("status", [{}, {"allocation": None, "reservedFor": []}])
def test_deallocated_claim_fails_and_keeps_its_record(setup: Setup, status: dict[str, Any]) -> None:
    ref = put_claim(setup, "a", share_result())
    record = setup.prepared(ref)
    setup.claims.put({**stored_claim("a", uid=ref.uid), "status": status})

    assert "found no allocation" in setup.refused(ref)
    assert setup.record(ref) == record


def test_record_that_may_be_outdated_is_not_returned_without_the_api_server(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    record = setup.prepared(ref)
    spec = setup.spec_of(ref)
    setup.claims.away = True

    assert "no answer" in setup.refused(ref)
    setup.claims.away = False
    assert setup.spec_of(ref) == spec
    assert setup.prepared(ref) == record


@pytest.fixture
def other(setup: Setup) -> Setup:
    """Return another instance on the same node, as in a rolling update."""
    return Setup(setup.folder, setup.claims)


@pytest.mark.parametrize("by_another_instance", [False, True])
def test_files_are_those_of_the_newest_record(
    setup: Setup, other: Setup, by_another_instance: bool
) -> None:
    first = put_annotated_claim(setup, "a", {LIMIT: "80Gi"}, tflops="1", vram="20Gi")
    second = put_claim(setup, "b", share_result(tflops="1", vram="50Gi"))
    by = other if by_another_instance else setup
    setup.host_files.before_provide = lambda: by.prepare(second)

    (share,) = setup.prepared(first).shares

    assert share.limit is not None
    assert [each["vramBytes"] for each in limits_of(setup, first)] == [share.limit.vram_bytes]
    assert share.limit.vram_bytes == 30 * GIB


def test_claim_that_another_instance_unprepared_leaves_no_files(setup: Setup, other: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.host_files.before_provide = lambda: other.unprepare(ref)

    outcome = setup.prepare(ref)[ref.uid]

    assert error_of(outcome) == "claim default/a: it was unprepared meanwhile"
    assert setup.spec_of(ref) is None
    assert list(setup.limits_folder.iterdir()) == []
    assert setup.ledger.claims() == []


def test_claim_whose_limits_are_followed_while_it_is_unprepared_leaves_no_files(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the moment between the removal of its files and that of its record."""
    ref = put_claim(setup, "a", share_result())
    record = setup.prepared(ref)
    remove = setup.node_files.remove
    followed: list[PreparedClaim] = []

    def remove_and_follow(*arguments: Any, **more: Any) -> None:
        remove(*arguments, **more)
        if not followed:
            followed.append(record)
            setup.upkeep().follow([record])
            assert setup.spec_of(ref) is not None

    monkeypatch.setattr(setup.node_files, "remove", remove_and_follow)
    assert setup.unprepare(ref) == {ref.uid: None}

    assert setup.spec_of(ref) is None
    assert list(setup.limits_folder.iterdir()) == []


def test_temporary_file_that_a_recovery_removed_is_written_again(
    setup: Setup, other: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.prepared(put_claim(setup, "first", share_result(vram="1Gi")))  # makes the folders
    ref = put_claim(setup, "a", share_result())
    fchmod = os.fchmod

    def recover_before(descriptor: int, mode: int) -> None:
        monkeypatch.setattr(os, "fchmod", fchmod)
        other.node_files.remove_unfinished()
        fchmod(descriptor, mode)

    setup.host_files.before_provide = lambda: monkeypatch.setattr(os, "fchmod", recover_before)

    setup.prepared(ref)

    assert setup.spec_of(ref) is not None
    assert limits_of(setup, ref) != []
