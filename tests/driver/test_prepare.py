"""Prepare and unprepare of claims."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tests.support.builders.devices import NODE
from tests.support.builders.stored_claims import stored_claim
from tests.support.ports import ClaimsInMemory, FixedDiscovery
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    error_of,
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

    outcome = setup.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim)
    assert setup.ledger.get(ref.uid) == outcome
    limits = next(d for d in setup.spec_of(ref)["devices"] if d["name"].endswith(":limits"))
    assert "TF_CUDA_SM_PERCENT_LIMIT=33" in limits["containerEdits"]["env"]
    assert "TF_GPU_MEMORY_LIMIT=16384" in limits["containerEdits"]["env"]


def test_repeated_call_gets_the_same_answer_and_reads_the_claim_again(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    first = setup.prepare(ref)

    again = setup.prepare(ref)

    assert again == first
    assert setup.claims.fetched == ["default/a", "default/a"]


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
    assert setup.ledger.get(ref.uid) is None
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

    text = error_of(setup.prepare(ref)[ref.uid])

    assert text.startswith("claim default/bad: ")
    assert re.search(expected, text), text
    assert setup.ledger.claims() == []
    assert setup.spec_of(ref) is None


def test_replaced_claim_is_refused(setup: Setup) -> None:
    put_claim(setup, "a", share_result(), uid="uid-new")
    old = ClaimRef(namespace="default", name="a", uid="uid-old")

    text = error_of(setup.prepare(old)["uid-old"])

    assert text == "claim default/a: found UID uid-new, expected uid-old: it was replaced"


def test_claim_without_an_allocation_is_refused(setup: Setup) -> None:
    claim = stored_claim("a", share_result())
    claim["status"] = {}
    ref = setup.claims.put(claim)

    assert "found no allocation" in error_of(setup.prepare(ref)[ref.uid])


@pytest.mark.parametrize("uid", ["../../etc/cron.d/x", "a/b", "", "x" * 64, "ümlaut", "a\n"])
def test_uid_that_is_no_file_name_is_refused_and_unprepared_as_unknown(
    setup: Setup, uid: str
) -> None:
    ref = ClaimRef(namespace="default", name="a", uid=uid)

    outcome = setup.prepare(ref)[uid]

    assert "UID" in error_of(outcome)
    assert setup.claims.fetched == []
    assert setup.unprepare(ref) == {uid: None}


def test_last_unit_fits_and_one_more_does_not(setup: Setup) -> None:
    first = put_claim(setup, "a", share_result(tflops="211999m", vram="1Gi"))
    second = put_claim(setup, "b", share_result(tflops="100001m", vram="1Gi"))
    third = put_claim(setup, "c", share_result(tflops="1m", vram="1Gi"))

    outcomes = setup.prepare(first, second, third)

    assert isinstance(outcomes[second.uid], PreparedClaim)
    assert "tflops: found 1m plus 312 in use, expected at most 312" in error_of(outcomes[third.uid])


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
    opaque = {
        "driver": "tensor-fusion.ai.dra-driver",
        "parameters": {
            "apiVersion": "tensor-fusion.ai/v1alpha1",
            "kind": "GpuShare",
            **whole,
        },
    }
    stored["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClass", "requests": [], "opaque": opaque}
    ]

    prepare_one(setup, silent)
    prepare_one(setup, parameters)

    assert setup.pods.pods_read == [f"default/{silent.name}"]


def test_claim_fails_until_its_device_node_exists(setup: Setup) -> None:
    use_real_cards(setup)
    setup.device_nodes.missing = {0}
    ref = put_claim(setup, "a", share_result())

    failed = setup.prepare(ref)[ref.uid]
    setup.device_nodes.missing = set()
    outcome = setup.prepare(ref)[ref.uid]

    assert "/dev/nvidia0" in error_of(failed)
    assert isinstance(outcome, PreparedClaim)
    assert outcome.shares[0].device_nodes == ("/dev/nvidia0",)
    assert setup.spec_of(ref)["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl"},
        {"path": "/dev/nvidia-uvm"},
    ]


def test_claim_of_a_real_card_without_a_minor_number_fails(setup: Setup) -> None:
    cards = tuple(real_gpu(gpu, minor=None) for gpu in simulated_inventory().gpus)
    setup.discovery.inventory = Inventory(gpus=cards)
    setup.catalog.refresh()
    ref = put_claim(setup, "a", share_result())

    assert "found no minor number" in error_of(setup.prepare(ref)[ref.uid])


def test_changed_minor_number_gives_the_new_device_node(setup: Setup) -> None:
    first, second = simulated_inventory().gpus
    setup.discovery.inventory = Inventory(
        gpus=(real_gpu(first, minor=0), real_gpu(second, minor=1))
    )
    setup.catalog.refresh()
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    setup.discovery.inventory = Inventory(
        gpus=(real_gpu(first, minor=1), real_gpu(second, minor=0))
    )
    setup.catalog.refresh()

    setup.prepare(ref)

    nodes = setup.spec_of(ref)["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes == [{"path": "/dev/nvidia1"}]


def test_claim_fails_during_an_api_server_outage_and_succeeds_after_it(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.claims.away = True
    failed = setup.prepare(ref)[ref.uid]
    setup.claims.away = False

    outcome = setup.prepare(ref)[ref.uid]

    assert "no answer" in error_of(failed)
    assert isinstance(outcome, PreparedClaim)


def test_claim_fails_while_the_cdi_folder_cannot_be_written(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.cdi_folder.write_text("a file where the folder should be")
    failed = setup.prepare(ref)[ref.uid]
    setup.cdi_folder.unlink()

    outcome = setup.prepare(ref)[ref.uid]

    assert str(setup.cdi_folder) in error_of(failed)
    assert isinstance(outcome, PreparedClaim)
    assert setup.spec_of(ref) is not None


def test_claim_fails_before_the_first_reading_of_the_cards(setup: Setup, tmp_path: Path) -> None:
    without_cards = DeviceCatalog(FixedDiscovery(None), NODE)
    preparer = setup.with_claims(setup.claims, without_cards)
    ref = put_claim(setup, "a", share_result())

    outcome = preparer.prepare([ref], deadline=time.monotonic() + 0.2)[ref.uid]

    assert "GPUs could not be read yet" in error_of(outcome)


def test_claim_on_a_sick_but_present_card_is_prepared(
    setup: Setup,
) -> None:
    ref = put_claim(setup, "a", share_result())
    uuid = simulated_inventory().gpus[0].uuid
    setup.catalog.on_event(CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=79))

    assert list(setup.catalog.sick()) == [GPU_0]
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)


def test_missing_card_fails_only_its_own_claims(setup: Setup) -> None:
    known, new = put_claim(setup, "a", share_result()), put_claim(setup, "b", share_result())
    on_other_card = put_claim(setup, "c", share_result(GPU_1))
    setup.prepare(known)
    setup.discovery.inventory = Inventory(gpus=simulated_inventory().gpus[1:])
    setup.catalog.refresh()

    outcomes = setup.prepare(known, new, on_other_card)

    text = f"{GPU_0}: the GPU is gone from the node, expected a working GPU"
    assert error_of(outcomes[known.uid]) == f"claim default/a: {text}"
    assert error_of(outcomes[new.uid]) == f"claim default/b: {text}"
    assert isinstance(outcomes[on_other_card.uid], PreparedClaim)
    assert setup.unprepare(known) == {known.uid: None}


def test_hanging_driver_fails_no_claim(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.discovery.inventory = None
    for _ in range(3):
        with pytest.raises(RetryableError):
            setup.catalog.refresh()

    assert set(setup.catalog.sick()) == {GPU_0, GPU_1}
    assert isinstance(setup.prepare(ref)[ref.uid], PreparedClaim)


LIMIT = "tensor-fusion.ai/vram-limit"


def prepare_one(setup: Setup, ref: ClaimRef) -> PreparedClaim:
    outcome = setup.prepare(ref)[ref.uid]
    assert isinstance(outcome, PreparedClaim), outcome
    return outcome


def reallocate(setup: Setup, ref: ClaimRef, *results: Any, pod: str = "other") -> None:
    """Allocate the same claim for another pod, as the scheduler does."""
    claim = stored_claim(ref.name, *results, uid=ref.uid)
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"}]
    setup.claims.put(claim)


def pods_of(record: PreparedClaim) -> list[str]:
    return [pod.name for pod in record.pods]


def limits_document(setup: Setup, ref: ClaimRef) -> Any:
    return json.loads((setup.limits_folder / f"{ref.uid}.json").read_text())


def test_reallocated_claim_gets_its_new_card_share_and_pod(
    setup: Setup,
) -> None:
    ref = put_claim(setup, "a", share_result(GPU_0))
    setup.prepare(ref)
    new = share_result(GPU_1, vram="8Gi")
    reallocate(setup, ref, new)

    with capture_logs() as logs:
        record = prepare_one(setup, ref)

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

    prepare_one(setup, ref)

    (limits,) = [each["limits"] for each in limits_document(setup, other)["shares"]]
    assert limits["vramBytes"] == 80 * 2**30
    third = put_claim(setup, "third", share_result(GPU_0, tflops="100", vram="60Gi"))
    prepare_one(setup, third)


def test_earlier_share_is_not_restored_if_the_new_one_does_not_fit(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result(GPU_0))
    setup.prepare(ref)
    prepare_one(setup, put_claim(setup, "whole", share_result(GPU_1, tflops="312", vram="80Gi")))
    reallocate(setup, ref, share_result(GPU_1))

    text = error_of(setup.prepare(ref)[ref.uid])

    assert "in use, expected at most 312" in text
    assert setup.ledger.get(ref.uid) is None
    assert setup.spec_of(ref) is None


def test_shared_claim_is_prepared_for_its_remaining_pods(setup: Setup) -> None:
    results = [share_result(GPU_0)]
    ref = put_claim(setup, "a", *results)
    first = prepare_one(setup, ref)
    reallocate(setup, ref, *results)

    record = prepare_one(setup, ref)

    assert record.shares == first.shares
    assert record.sequence == first.sequence
    assert record.pods == (PodRef(namespace="default", name="other", uid="uid-of-other"),)
    assert limits_document(setup, ref)["pods"] == [{"name": "other", "uid": "uid-of-other"}]


@pytest.mark.parametrize("status", [{}, {"allocation": None, "reservedFor": []}])
def test_deallocated_claim_fails_and_keeps_its_record(setup: Setup, status: dict[str, Any]) -> None:
    ref = put_claim(setup, "a", share_result())
    record = prepare_one(setup, ref)
    setup.claims.put({**stored_claim("a", uid=ref.uid), "status": status})

    assert "found no allocation" in error_of(setup.prepare(ref)[ref.uid])
    assert setup.ledger.get(ref.uid) == record


def test_record_that_may_be_outdated_is_not_returned_without_the_api_server(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    record = prepare_one(setup, ref)
    spec = setup.spec_of(ref)
    setup.claims.away = True

    text = error_of(setup.prepare(ref)[ref.uid])
    setup.claims.away = False

    assert "no answer" in text
    assert setup.spec_of(ref) == spec
    assert prepare_one(setup, ref) == record
