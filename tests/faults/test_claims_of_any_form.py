"""Generated claims from the API server: each one is prepared, or refused without a trace."""

import json
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
from tests.faults.node import CARDS, Node, device, running
from tests.faults.open_files import nothing_left_open
from tests.support import cdi_rules
from tests.support.tally import INPUTS_FUZZED, Tally

pytestmark = pytest.mark.sweep

SHARE_ID = "5a5a5a5a-0000-4000-8000-00000000000{}"
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
REF = ClaimRef(namespace="default", name="a", uid="1f0e0000-0000-4000-8000-00000000000a")


def stored() -> dict[str, Any]:
    """Return a valid claim with two shares, parameters, annotations and a pod."""
    results = [
        {
            "request": f"gpu/{card}",
            "driver": names.DRIVER,
            "pool": "default/node-01",
            "device": device(card),
            "shareID": SHARE_ID.format(card),
            "consumedCapacity": {"tflops": "50", "vram": "10Gi"},
        }
        for card in range(CARDS)
    ]
    opaque = {"driver": names.DRIVER, "parameters": PARAMETERS}
    config = [{"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": REF.namespace,
            "name": REF.name,
            "uid": REF.uid,
            "annotations": {"team": "a"},
        },
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": "pod-a", "uid": "uid-of-pod-a"}],
        },
    }


def with_parameters(parameters: object) -> dict[str, Any]:
    claim = stored()
    claim["status"]["allocation"]["devices"]["config"][0]["opaque"]["parameters"] = parameters
    return claim


def with_annotations(annotations: object) -> dict[str, Any]:
    claim = stored()
    claim["metadata"]["annotations"] = annotations
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
        answer = node.prepare(REF)
    assert answer is not None, node.log()
    assert answer.keys() == {REF.uid}
    error = answer[REF.uid]
    held = invariants.records(node.data_folder)
    if isinstance(error, str):
        assert error.startswith(f"claim {REF}: ") or "device node" in error, error
        assert held == {}
    else:
        # A claim with devices of other drivers only needs no record here.
        assert held.keys() == ({REF.uid} if error else set())
        for file in node.cdi_folder.iterdir():
            assert cdi_rules.violations(json.loads(file.read_text())) == []
    assert invariants.violations(node) == []
    assert node.unprepare(REF) == {REF.uid: ""}
    return not isinstance(error, str)


def test_generated_claim_is_prepared_or_refused(served: Node, tally: Tally) -> None:
    outcomes = set()
    parameters = mutated(PARAMETERS) | ANYTHING
    annotations = mutated(ANNOTATIONS) | st.dictionaries(st.sampled_from([*ANNOTATIONS]), SCALARS)
    claims = st.one_of(
        mutated(stored()), parameters.map(with_parameters), annotations.map(with_annotations)
    )

    @bounded(600)
    @given(claims)
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

        answer = served.prepare(REF)

        assert answer is not None, served.log()
        error = answer[REF.uid]
        assert isinstance(error, str)
        assert error.startswith(f"claim {REF}: "), error
        assert "found " in error
        tally[INPUTS_FUZZED] += 1
