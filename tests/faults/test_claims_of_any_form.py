"""Generated claims from the API server: each one is prepared, or refused without a trace."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_simulator.api.faults import Forge
from dra_simulator.rest import CLAIMS
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.faults import invariants
from tests.faults.mutations import ANYTHING, SCALARS, bounded, mutated
from tests.faults.node import CARDS, Node, device, nothing_left_open, running
from tests.support import cdi_rules
from tests.support.builders.stored_claims import allocation_result, stored_claim
from tests.support.tally import INPUTS_FUZZED, Tally

pytestmark = pytest.mark.sweep

PARAMETERS = {
    "apiVersion": "tensor-fusion.ai/v1alpha1",
    "kind": "GpuShare",
    "limits": {"tflops": "60", "vram": "20Gi"},
    "isolation": "soft",
    "qos": "high",
}
ANNOTATIONS = {
    names.ANNOTATION_TFLOPS_LIMIT: "60",
    names.ANNOTATION_VRAM_LIMIT: "20Gi",
    names.ANNOTATION_QOS: "low",
    names.ANNOTATION_ISOLATION: "hard",
}
TEAM = {"team": "a"}
REF = ClaimRef(namespace="default", name="a", uid="1f0e0000-0000-4000-8000-00000000000a")


def stored(parameters: object = PARAMETERS, annotations: object = TEAM) -> dict[str, Any]:
    """Return a claim with two shares, parameters, annotations and a pod."""
    results = [
        allocation_result(device(card), request=f"gpu/{card}", tflops="50", vram="10Gi")
        for card in range(CARDS)
    ]
    claim = stored_claim(REF.name, *results, uid=REF.uid)
    claim["metadata"]["annotations"] = annotations
    opaque = {"driver": names.DRIVER, "parameters": parameters}
    config = {"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}
    claim["status"]["allocation"]["devices"]["config"] = [config]
    return claim


@pytest.fixture
def served(node: Node) -> Iterator[Node]:
    with running(node):
        check_answered(node, stored())
        with nothing_left_open(node):
            yield node
        assert invariants.leftovers(node) == []


def check_answered(node: Node, claim: object) -> bool:
    """Prepare and unprepare the claim; check both answers; return True if it was prepared."""
    body = json.dumps(claim).encode()
    with node.server.faults.during("get", CLAIMS.plural, Forge(body), name=REF.name):
        answer = node.prepare(REF) or {}
    assert answer.keys() == {REF.uid}, node.log()
    given = answer[REF.uid]
    if isinstance(given, str):
        assert given.startswith(f"claim {REF}: ") or "device node" in given, given
    for file in node.cdi_folder.iterdir():
        assert cdi_rules.violations(json.loads(file.read_text())) == []
    # A claim with devices of other drivers only needs no record here.
    recorded = {REF.uid} if given and not isinstance(given, str) else set()
    assert invariants.records(node.data_folder).keys() == recorded
    assert invariants.violations(node) == []
    assert node.unprepare(REF) == {REF.uid: ""}
    return not isinstance(given, str)


def test_generated_claim_is_prepared_or_refused(served: Node, tally: Tally) -> None:
    outcomes = set()
    annotations = mutated(ANNOTATIONS) | st.dictionaries(st.sampled_from([*ANNOTATIONS]), SCALARS)

    @bounded(600)
    @given(
        mutated(stored())
        | st.builds(stored, mutated(PARAMETERS) | ANYTHING)
        | st.builds(stored, annotations=annotations)
    )
    def check(claim: dict[str, Any]) -> None:
        outcomes.add(check_answered(served, claim))
        tally[INPUTS_FUZZED] += 1

    check()

    assert outcomes == {True, False}


def test_response_that_is_not_a_claim_is_an_error_that_names_what_was_found(
    served: Node, tally: Tally
) -> None:
    for body in (b"", b"{", b"[]", b"null", b"7", b"\xff", b"[" * 5000):
        served.server.faults.add("get", CLAIMS.plural, Forge(body), name=REF.name, times=1)

        answer = served.prepare(REF) or {}

        assert re.match(f"claim {REF}: .*found ", str(answer[REF.uid]), re.DOTALL), served.log()
        tally[INPUTS_FUZZED] += 1
