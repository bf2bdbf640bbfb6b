"""Several claims in one call, prepared one after the other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.support.prepared_node import Setup, error_of, put_claim, share_result


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.ledger.close()


def claims(node: Setup, number: int, **more: Any) -> list[ClaimRef]:
    amounts = {"tflops": "1", "vram": "1Gi", **more}
    return [put_claim(node, f"c-{n}", share_result(**amounts)) for n in range(number)]


def test_claim_that_cannot_be_read_costs_no_other(node: Setup) -> None:
    refs = claims(node, 3)
    del node.claims.stored[str(refs[1])]

    outcomes = node.prepare(*refs)

    assert error_of(outcomes[refs[1].uid]) == f"claim {refs[1]}: found none"
    assert [isinstance(outcomes[ref.uid], PreparedClaim) for ref in refs] == [True, False, True]


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
