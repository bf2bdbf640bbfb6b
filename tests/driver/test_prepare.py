"""Preparation of claims: record, CDI spec and answer, with a real ledger and CDI folder."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.support.builders.stored_claims import stored_claim
from tests.support.ports import ClaimsInMemory
from tests.support.prepared_node import GPU_0, Setup, error_of, put_claim, share_result, spec_file
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
    assert "default/missing" in error_of(outcomes[bad.uid])


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
