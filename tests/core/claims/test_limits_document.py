"""Limits document of a claim, for a hypervisor on the node."""

import json
from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims import limits_document
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import fitted_claim
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import node_offer
from tests.support.builders.policies import share_policy

NODE = node_offer(*gpus(2))
GPU_0, GPU_1 = NODE.devices
UUID_0, UUID_1 = (card.uuid for card in gpus(2))


def test_document_has_claim_pods_and_every_share_with_its_limits() -> None:
    claim = replace(
        fitted_claim(
            "a",
            allocation(GPU_0, 1, tflops="78", vram="20Gi"),
            on=NODE,
            policy=share_policy(tflops="156", vram="30Gi", qos=Qos.HIGH),
        ),
        pods=(PodRef(namespace="default", name="p", uid="uid-of-p"),),
    )

    document = limits_document.document(claim)

    assert document == {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "ClaimLimits",
        "claim": {"namespace": "default", "name": "a", "uid": "uid-a"},
        "pods": [{"name": "p", "uid": "uid-of-p"}],
        "enforcer": "tensor-fusion",
        "gpus": {UUID_0: {"smPercent": 50, "vramBytes": 30 * GIB}},
        "shares": [
            {
                "gpuUUID": UUID_0,
                "request": "gpu",
                "shareID": share_id(1),
                "adminAccess": False,
                "isolation": "soft",
                "qos": "high",
                "consumed": {"tflops": "78", "vram": "20Gi"},
                "limits": {"smPercent": 50, "vramBytes": 30 * GIB, "clamped": False},
            }
        ],
    }
    assert json.loads(json.dumps(document)) == document


def test_clamped_limit_is_marked() -> None:
    claim = fitted_claim(
        "a", allocation(GPU_0, 1, vram="20Gi"), on=NODE, policy=share_policy(vram="100Gi")
    )

    document = limits_document.document(claim)

    assert document is not None
    assert document["shares"][0]["limits"]["vramBytes"] == 80 * GIB
    assert document["shares"][0]["limits"]["clamped"]


def test_share_without_a_limit_has_no_limits_entry() -> None:
    shared = fitted_claim(
        "a", exclusive_allocation(GPU_0), on=NODE, policy=share_policy(isolation=Isolation.SHARED)
    )
    free = fitted_claim("b", allocation(GPU_0, 1), on=NODE, policy=share_policy(limiter=False))
    admin = fitted_claim("c", exclusive_allocation(GPU_0, admin_access=True), on=NODE)

    for claim in (shared, free, admin):
        document = limits_document.document(claim)
        assert document is not None
        assert "limits" not in document["shares"][0]


def test_claim_without_our_devices_has_no_document() -> None:
    assert limits_document.document(fitted_claim("a", on=NODE)) is None


def test_claim_ref_is_read_from_a_document() -> None:
    record = fitted_claim("a", allocation(GPU_0, 1), on=NODE)

    assert limits_document.claim_ref(limits_document.document(record)) == record.ref


@pytest.mark.parametrize(
    "found",
    [None, [], "claim", {}, {"claim": []}, {"claim": {"namespace": "a", "name": "b"}}]
    + [{"claim": {"namespace": "a", "name": "b", "uid": uid}} for uid in (7, "", None)],
)
def test_other_values_have_no_claim_ref(found: object) -> None:
    assert limits_document.claim_ref(found) is None
