"""Files of a claim beside its CDI spec: the limits document, device metadata (KEP-5304)."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, device_metadata, prepared
from tensorfusion_dra.core.claims.claim import Allocation, ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.core.kubernetes.resource_claims import POD_CLAIM_ANNOTATION
from tests.support import cdi_rules
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.devices import NODE as NODE_FACTS
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import ENFORCER, node_facts
from tests.support.builders.policies import share_policy

NODE = node_facts(*gpus(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
FOLDER = "/var/lib/kubelet/plugins/driver/dra-device-metadata"
ROOT = "/var/run/kubernetes.io/dra-device-attributes"
FILE = f"{names.DRIVER}-metadata.json"


def described(*allocations: Allocation, pod_claim_name: str = "") -> PreparedClaim:
    """Return the record of a claim with metadata."""
    annotations = {POD_CLAIM_ANNOTATION: pod_claim_name} if pod_claim_name else {}
    claim = allocated_claim("a", *allocations, annotations=annotations)
    record = claim_admission(claim, on=NODE)
    return replace(record, metadata=device_metadata.of_claim(claim, NODE.devices))


def objects_of(claim: PreparedClaim) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the objects of each file by request."""
    assert claim.metadata is not None
    found = device_metadata.documents(claim, claim.metadata)
    return {name.partition("_")[2]: objects for name, objects in found.items()}


def mounts_by_id(claim: PreparedClaim) -> dict[str, list[Any]]:
    """Return by request the mounts of metadata that a container with this request gets."""
    spec = cdi.spec(claim, ENFORCER, metadata_folder=FOLDER)
    assert spec is not None
    assert cdi_rules.violations(spec) == []
    found: dict[str, list[Any]] = {}
    for share, ids in zip(claim.shares, cdi.ids_by_share(claim), strict=True):
        for edits in cdi_rules.injected(spec, list(ids)):
            ours = [each for each in edits.get("mounts", ()) if each["hostPath"].startswith(FOLDER)]
            found.setdefault(share.request, []).extend(ours)
    return found


def test_file_has_an_object_of_each_version_with_claim_request_and_attributes() -> None:
    claim = described(allocation(GPU_0, 1))

    (newest, oldest) = objects_of(claim)["gpu"]

    assert oldest == {**newest, "apiVersion": "metadata.resource.k8s.io/v1alpha1"}
    assert newest == {
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "kind": "DeviceMetadata",
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a", "generation": 1},
        "requests": [
            {
                "name": "gpu",
                "devices": [
                    {
                        "driver": names.DRIVER,
                        "pool": NODE_FACTS.pool,
                        "name": GPU_0,
                        "attributes": NODE.devices[GPU_0].as_api()["attributes"],
                    }
                ],
            }
        ],
    }


@pytest.mark.parametrize(
    ("subrequest", "pod_claim_name", "folder"),
    [
        (None, "", "resourceclaims/a/gpu"),
        (None, "my-gpu", "resourceclaimtemplates/my-gpu/gpu"),
        ("small", "", "resourceclaims/a/gpu"),
    ],
    ids=["claim", "claim of a template", "alternative, which is in the file only"],
)
def test_file_is_mounted_where_the_api_says(
    subrequest: str | None, pod_claim_name: str, folder: str
) -> None:
    claim = described(allocation(GPU_0, 1, subrequest=subrequest), pod_claim_name=pod_claim_name)

    (newest, _) = objects_of(claim)["gpu"]
    assert mounts_by_id(claim)["gpu"] == [
        {
            "hostPath": f"{FOLDER}/uid-a_gpu.json",
            "containerPath": f"{ROOT}/{folder}/{FILE}",
            "options": ["ro", "nosuid", "nodev", "bind"],
        }
    ]
    assert newest.get("podClaimName", "") == pod_claim_name
    assert newest["requests"][0]["name"] == ("gpu/small" if subrequest else "gpu")


def test_a_container_gets_the_file_of_its_own_request_once() -> None:
    claim = described(
        allocation(GPU_0, 1, request="one"),
        allocation(GPU_1, 2, request="two"),
        allocation(GPU_2, 3, request="two"),
        exclusive_allocation(GPU_2, request="watch", admin_access=True),
    )

    found = mounts_by_id(claim)

    assert {request: len(mounts) for request, mounts in found.items()} == {
        "one": 1,
        "two": 1,
        "watch": 1,
    }
    assert {
        request: [device["name"] for device in newest["requests"][0]["devices"]]
        for request, (newest, _) in objects_of(claim).items()
    } == {"one": [GPU_0], "two": [GPU_1, GPU_2], "watch": [GPU_2]}


def test_a_claim_without_metadata_has_the_spec_and_ids_of_before() -> None:
    record = replace(described(allocation(GPU_0, 1)), metadata=None)

    spec = cdi.spec(record, ENFORCER, metadata_folder=FOLDER)

    assert FOLDER not in json.dumps(spec)
    assert not any("metadata" in name for ids in cdi.ids_by_share(record) for name in ids)
    assert "metadata" not in record.as_json()


@pytest.mark.parametrize("claim_name", ["a.b", "resourceclaims"])
@pytest.mark.parametrize("request_name", ["gpu", "gpu-gpu", "a"])
def test_names_of_files_lead_back_to_their_claims(claim_name: str, request_name: str) -> None:
    ref = ClaimRef(namespace="default", name=claim_name, uid="0-a-b")
    record = replace(described(allocation(GPU_0, 1, request=request_name)), ref=ref)

    (name,) = device_metadata.file_names(record)

    assert name == f"0-a-b_{request_name}"
    assert device_metadata.claim_uid(name) == ref.uid


@pytest.mark.parametrize("found", ["../../etc", "a/b", "a.b", "A", "a" * 64, "-", " ", "\ud800"])
def test_an_annotation_that_names_no_entry_of_a_pod_is_refused(found: str) -> None:
    claim = allocated_claim("a", allocation(GPU_0, 1), annotations={POD_CLAIM_ANNOTATION: found})

    with pytest.raises(ClaimError, match=f"annotation {POD_CLAIM_ANNOTATION}: found"):
        device_metadata.of_claim(claim, NODE.devices)


def test_other_attributes_make_the_next_generation_and_equal_ones_do_not() -> None:
    metadata = device_metadata.of_claim(
        allocated_claim("a", allocation(GPU_0, 1), allocation(GPU_1, 2)), NODE.devices
    )
    moved = {
        GPU_0: replace(
            NODE.devices[GPU_0],
            attributes={**NODE.devices[GPU_0].attributes, names.ATTR_PCI_BUS_ID: "0000:99:00.0"},
        )
    }

    assert device_metadata.refreshed(metadata, NODE.devices) is metadata
    after = device_metadata.refreshed(metadata, moved)
    assert after.generation == 2
    assert after.attributes[GPU_0][names.ATTR_PCI_BUS_ID] == {"string": "0000:99:00.0"}
    assert after.attributes[GPU_1] == metadata.attributes[GPU_1]


UUID_0, UUID_1 = (card.uuid for card in gpus(2))


@pytest.mark.parametrize(
    ("vram_limit", "vram_bytes", "clamped"), [("30Gi", 30 * GIB, False), ("100Gi", 80 * GIB, True)]
)
def test_document_has_claim_pods_and_every_share_with_its_limits(
    vram_limit: str, vram_bytes: int, *, clamped: bool
) -> None:
    claim = replace(
        claim_record(
            "a",
            allocation(GPU_0, 1, tflops="78", vram="20Gi"),
            on=NODE,
            policy=share_policy(tflops="156", vram=vram_limit, qos=Qos.HIGH),
        ),
        pods=(PodRef(namespace="default", name="p", uid="uid-of-p"),),
    )

    document = prepared.limits_document(claim)

    assert document == {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "ClaimLimits",
        "claim": {"namespace": "default", "name": "a", "uid": "uid-a"},
        "pods": [{"name": "p", "uid": "uid-of-p"}],
        "enforcer": "tensor-fusion",
        "gpus": {UUID_0: {"smPercent": 50, "vramBytes": vram_bytes}},
        "shares": [
            {
                "gpuUUID": UUID_0,
                "request": "gpu",
                "shareID": share_id(1),
                "adminAccess": False,
                "isolation": "soft",
                "qos": "high",
                "consumed": {"tflops": "78", "vram": "20Gi"},
                "limits": {"smPercent": 50, "vramBytes": vram_bytes, "clamped": clamped},
            }
        ],
    }
    assert json.loads(json.dumps(document)) == document


def test_share_without_a_limit_has_no_limits_entry() -> None:
    shared = claim_record(
        "a", exclusive_allocation(GPU_0), on=NODE, policy=share_policy(isolation=Isolation.SHARED)
    )
    free = claim_record("b", allocation(GPU_0, 1), on=NODE, policy=share_policy(limiter=False))
    admin = claim_record("c", exclusive_allocation(GPU_0, admin_access=True), on=NODE)

    for claim in (shared, free, admin):
        document = prepared.limits_document(claim)
        assert document is not None
        assert "limits" not in document["shares"][0]


def test_limits_document_says_of_which_claim_it_is_and_what_its_shares_have() -> None:
    record = claim_record("a", allocation(GPU_0, 1), on=NODE)
    (share,) = record.shares
    assert share.limit is not None

    found = prepared.remains(prepared.limits_document(record))

    assert found == prepared.Remains(
        ref=record.ref,
        devices=frozenset({GPU_0}),
        enforcer=record.enforcer,
        limits={(GPU_0, share.share_id): share.limit},
    )


CLAIM = {"namespace": "a", "name": "b", "uid": "c"}


@pytest.mark.parametrize(
    "found",
    [None, [], "claim", {}, {"claim": []}, {"claim": CLAIM}, {"claim": CLAIM, "shares": []}]
    + [{"claim": {**CLAIM, "uid": uid}, "shares": [], "enforcer": "mps"} for uid in (7, "", None)],
)
def test_other_values_say_nothing_of_a_claim(found: object) -> None:
    assert prepared.remains(found) is None
