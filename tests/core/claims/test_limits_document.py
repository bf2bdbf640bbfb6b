"""Limits document of a claim, for a hypervisor on the node."""

import json
from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims import documents
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import node_facts
from tests.support.builders.policies import share_policy

NODE = node_facts(*gpus(2))
GPU_0, GPU_1 = NODE.devices
UUID_0, UUID_1 = (card.uuid for card in gpus(2))


def test_document_has_claim_pods_and_every_share_with_its_limits() -> None:
    claim = replace(
        claim_record(
            "a",
            allocation(GPU_0, 1, tflops="78", vram="20Gi"),
            on=NODE,
            policy=share_policy(tflops="156", vram="30Gi", qos=Qos.HIGH),
        ),
        pods=(PodRef(namespace="default", name="p", uid="uid-of-p"),),
    )

    document = documents.limits_document(claim)

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
    claim = claim_record(
        "a", allocation(GPU_0, 1, vram="20Gi"), on=NODE, policy=share_policy(vram="100Gi")
    )

    document = documents.limits_document(claim)

    assert document is not None
    assert document["shares"][0]["limits"]["vramBytes"] == 80 * GIB
    assert document["shares"][0]["limits"]["clamped"]


def test_share_without_a_limit_has_no_limits_entry() -> None:
    shared = claim_record(
        "a", exclusive_allocation(GPU_0), on=NODE, policy=share_policy(isolation=Isolation.SHARED)
    )
    free = claim_record("b", allocation(GPU_0, 1), on=NODE, policy=share_policy(limiter=False))
    admin = claim_record("c", exclusive_allocation(GPU_0, admin_access=True), on=NODE)

    for claim in (shared, free, admin):
        document = documents.limits_document(claim)
        assert document is not None
        assert "limits" not in document["shares"][0]


def test_claim_without_our_devices_has_no_document() -> None:
    assert documents.limits_document(claim_record("a", on=NODE)) is None


def test_claim_ref_is_read_from_a_document() -> None:
    record = claim_record("a", allocation(GPU_0, 1), on=NODE)

    assert documents.claim_ref(documents.limits_document(record)) == record.ref


@pytest.mark.parametrize(
    "found",
    [None, [], "claim", {}, {"claim": []}, {"claim": {"namespace": "a", "name": "b"}}]
    + [{"claim": {"namespace": "a", "name": "b", "uid": uid}} for uid in (7, "", None)],
)
def test_other_values_have_no_claim_ref(found: object) -> None:
    assert documents.claim_ref(found) is None
