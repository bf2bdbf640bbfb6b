"""Several claims in one call: read side by side, prepared one after the other."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.outcomes import Failure
from tensorfusion_dra.driver.prepare import Preparer
from tests.support.ports import ClaimsInMemory
from tests.support.prepared_node import Setup, error_of, put_claim, share_result
from tests.support.waiting import PATIENCE_SECONDS


class ClaimsThatMeet:
    """Claims whose reads return only when all of them are running."""

    def __init__(self, claims: ClaimsInMemory, number: int) -> None:
        self._claims = claims
        self._together = Barrier(number)

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        self._together.wait(PATIENCE_SECONDS)
        return self._claims.fetch(ref, wait_seconds=wait_seconds)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.ledger.close()


def claims(node: Setup, number: int, **more: Any) -> list[ClaimRef]:
    amounts = {"tflops": "1", "vram": "1Gi", **more}
    return [put_claim(node, f"c-{n}", share_result(**amounts)) for n in range(number)]


def prepare(preparer: Preparer, refs: list[ClaimRef]) -> Mapping[str, PreparedClaim | Failure]:
    return preparer.prepare(refs, deadline=time.monotonic() + PATIENCE_SECONDS)


def test_claims_are_read_at_the_same_time_and_admitted_in_order(node: Setup) -> None:
    refs = claims(node, 8)
    preparer = node.with_claims(ClaimsThatMeet(node.claims, 8))

    outcomes = prepare(preparer, refs)

    assert list(outcomes) == [ref.uid for ref in refs]
    sequence = [getattr(outcome, "sequence", None) for outcome in outcomes.values()]
    assert sequence == list(range(1, 9))
    assert sorted(node.claims.fetched) == [str(ref) for ref in refs]


def test_claim_that_cannot_be_read_costs_no_other(node: Setup) -> None:
    refs = claims(node, 3)
    del node.claims.stored[str(refs[1])]

    outcomes = node.prepare(*refs)

    assert error_of(outcomes[refs[1].uid]) == f"claim {refs[1]}: found none"
    assert [isinstance(outcomes[ref.uid], PreparedClaim) for ref in refs] == [True, False, True]


def test_claims_that_were_read_recently_are_not_read_again(node: Setup) -> None:
    refs = claims(node, 3)
    node.prepare(*refs[:2])
    node.claims.fetched.clear()

    node.prepare(*refs)

    assert node.claims.fetched == [str(refs[2])]


def test_claim_is_read_again_if_another_call_had_its_turn_in_between(node: Setup) -> None:
    refs = claims(node, 2)
    other = claims(node, 1)[0]

    class Claims:
        """Unprepares the claim, by another call, while it is read for the first time."""

        def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
            if ref == other and str(other) not in node.claims.fetched:
                unprepare = Thread(target=lambda: preparer.unprepare([ref], deadline=wait_seconds))
                unprepare.start()
                unprepare.join(PATIENCE_SECONDS)
            return node.claims.fetch(ref, wait_seconds=wait_seconds)

    preparer = node.with_claims(Claims())
    outcomes = prepare(preparer, refs)

    assert all(isinstance(outcome, PreparedClaim) for outcome in outcomes.values())
    assert sorted(node.claims.fetched) == sorted([str(other), str(other), str(refs[1])])


def test_pods_of_a_claim_are_read_once_each_and_only_if_a_value_is_open(node: Setup) -> None:
    silent, parameters = claims(node, 2)
    stored = node.claims.stored[str(parameters)]
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

    outcomes = node.prepare(silent, parameters)

    assert all(isinstance(outcome, PreparedClaim) for outcome in outcomes.values())
    assert node.pods.pods_read == [f"default/{silent.name}"]
