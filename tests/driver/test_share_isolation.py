"""Isolation of shares: the modes that tenants may choose, and one mode for each card."""

import copy
from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.driver.recover import recover
from tests.support.builders.devices import NODE
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import (
    GPU_1,
    Setup,
    error_of,
    put_annotated_claim,
    put_claim,
    share_result,
)


def put_claim_of_hard_class(setup: Setup, name: str, annotations: dict[str, str]) -> ClaimRef:
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "isolation": "hard",
    }
    claim = stored_claim(name, share_result())
    claim["metadata"]["annotations"] = annotations
    claim["status"]["allocation"]["devices"]["config"] = [
        {
            "source": "FromClass",
            "opaque": {"driver": "tensor-fusion.ai.dra-driver", "parameters": parameters},
        }
    ]
    return setup.claims.put(claim)


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        ("hard", "isolation hard: found no limiter for it on this node, expected an enforcer"),
        ("shared", "isolation shared: found 100 of 312 tflops and 16Gi of 80Gi vram, expected the"),
    ],
)
@pytest.mark.parametrize("by", ["claim", "pod"])
def test_tenant_cannot_remove_its_limits_by_annotation(
    setup: Setup, by: str, isolation: str, expected: str
) -> None:
    annotations = {"tensor-fusion.ai/isolation": isolation}
    ref = put_annotated_claim(setup, "a", annotations if by == "claim" else {})
    setup.pods.stored["default/a"] = annotations if by == "pod" else {}
    other = put_claim(setup, "b", share_result(vram="1Gi"))

    outcomes = setup.prepare(ref, other)

    assert expected in error_of(outcomes[ref.uid])
    assert setup.spec_of(ref) is None
    assert isinstance(outcomes[other.uid], PreparedClaim)


def test_claim_prepared_by_an_older_release_is_not_changed(setup: Setup) -> None:
    """Older releases accepted hard isolation from a tenant's annotation.

    The container of such a claim runs, so its record stays valid.
    """
    ref = put_claim_of_hard_class(setup, "a", {})
    setup.prepare(ref)
    claim = copy.deepcopy(dict(setup.claims.stored[str(ref)]))
    claim["metadata"]["annotations"] = {"tensor-fusion.ai/isolation": "hard"}
    claim["status"]["allocation"]["devices"].pop("config", None)
    setup.claims.put(claim)
    spec = setup.spec_of(ref)

    after = setup.restarted()
    recover(after.ledger, after.projection, boot_id=after.boot_id)
    again = after.prepare(ref)[ref.uid]
    after.ledger.close()

    assert isinstance(again, PreparedClaim)
    assert after.spec_of(ref) == spec


def test_claims_get_the_isolation_of_the_nodes_pool_unless_they_choose_a_softer_one(
    setup: Setup,
) -> None:
    setup.catalog.set_node(replace(NODE, isolation=Isolation.HARD))
    default, repeated = (
        put_claim(setup, "a", share_result()),
        put_annotated_claim(setup, "b", {"tensor-fusion.ai/isolation": "hard"}),
    )
    softer = put_annotated_claim(setup, "c", {"tensor-fusion.ai/isolation": "soft"}, device=GPU_1)

    outcomes = setup.prepare(default, repeated, softer)

    modes = []
    for outcome in outcomes.values():
        assert isinstance(outcome, PreparedClaim)
        modes += [each.isolation for each in outcome.shares]
    assert modes == [Isolation.HARD, Isolation.HARD, Isolation.SOFT]


def test_card_has_one_isolation_mode_at_a_time(setup: Setup) -> None:
    soft = put_claim(setup, "soft", share_result())
    hard = put_claim_of_hard_class(setup, "hard", {})

    outcomes = setup.prepare(soft, hard)
    setup.unprepare(soft)
    again = setup.prepare(hard)[hard.uid]

    assert "isolation hard: found the card in isolation soft by default/soft" in error_of(
        outcomes[hard.uid]
    )
    assert isinstance(again, PreparedClaim)
