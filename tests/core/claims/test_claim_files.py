"""Files of a claim: its CDI spec, limits document, and device metadata (KEP-5304)."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, device_metadata, prepared
from tensorfusion_dra.core.claims.claim import Allocation, ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import (
    CardAccess,
    DeviceMetadata,
    Limit,
    Mount,
    PreparedClaim,
    PreparedShare,
)
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB, Quantity
from tensorfusion_dra.core.kubernetes.resource_claims import POD_CLAIM_ANNOTATION
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.devices import NODE as MEMBER
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import ENFORCER, node_facts
from tests.support.builders.policies import share_policy
from tests.support.cdi_rules import env, injected, spec_of, variables_with_prefix, violations
from tests.support.tally import examples

NODE = node_facts(*gpus(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
UUID_0, UUID_1, UUID_2 = (card.uuid for card in gpus(3))
LETTER_FIRST = ClaimRef(namespace="default", name="a", uid="fa0b0c0d-0000-4000-8000-000000000001")


def test_spec_of_one_share_has_device_nodes_limits_and_common_edits() -> None:
    claim = replace(
        claim_record("a", allocation(GPU_0, 1, tflops="78", vram="20Gi"), on=NODE),
        ref=LETTER_FIRST,
    )

    description = (
        f'{{"uuid":"{UUID_0}","request":"gpu","smPercent":25,"vramBytes":21474836480,'
        '"tflops":"78","vram":"20Gi"}'
    )
    bind = ["nosuid", "nodev", "bind"]
    assert cdi.spec(claim, ENFORCER) == {
        "cdiVersion": "0.5.0",
        "kind": "tensor-fusion.ai/vgpu",
        "devices": [
            {
                "name": f"{LETTER_FIRST.uid}-gpu-{GPU_0}-{share_id(1)}",
                "containerEdits": {
                    "env": [
                        f"TENSOR_FUSION_SHARE_5A5A5A5A_0000_4000_8000_000000000001={description}"
                    ],
                    "deviceNodes": [{"path": "/dev/nvidia0"}],
                },
            },
            {
                "name": f"{LETTER_FIRST.uid}-gpu:limits",
                "containerEdits": {
                    "env": [
                        "TF_ISOLATION_MODE=soft",
                        "DISABLE_GPU_LIMITER=",
                        "TF_ENABLE_DISPATCH_FORWARD=",
                        "TF_DISABLE_MEMORY_MANAGER=",
                        "TF_SKIP_HOOKS_IF_NO_LIMIT=",
                        "ENABLE_NVML_HOOKS=",
                        "ENABLE_CUDA_HOOKS=",
                        "TF_CUDA_SM_PERCENT_LIMIT=25",
                        "TF_GPU_MEMORY_LIMIT=20480",
                        "TF_CUDA_MEMORY_LIMIT=20480",
                        f'TENSOR_FUSION_CUDA_UP_LIMIT={{"{UUID_0}":25}}',
                        f'TENSOR_FUSION_CUDA_MEM_LIMIT={{"{UUID_0}":21474836480}}',
                        "TF_SHM_PATH=/run/tensor-fusion/shm/shm",
                        "SHM_PATH=/run/tensor-fusion/shm",
                        "POD_NAMESPACE=default",
                    ],
                    "mounts": [
                        {
                            "hostPath": "/run/tensor-fusion/libcuda_limiter.so",
                            "containerPath": "/tensor-fusion-limiter/libcuda_limiter.so",
                            "options": ["ro", *bind],
                        },
                        {
                            "hostPath": f"/run/tensor-fusion/shm/default/{LETTER_FIRST.uid}",
                            "containerPath": "/run/tensor-fusion/shm",
                            "options": ["rw", *bind],
                        },
                        {
                            "hostPath": "/run/tensor-fusion/preload/ld.so.preload",
                            "containerPath": "/etc/ld.so.preload",
                            "options": ["ro", *bind],
                        },
                    ],
                },
            },
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_DEVICE_ORDER=PCI_BUS_ID"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        },
    }


@pytest.mark.parametrize("first", "a0")
def test_spec_has_the_lowest_version_that_allows_the_names_of_any_claim(first: str) -> None:
    ref = replace(LETTER_FIRST, uid=f"{first}{LETTER_FIRST.uid[1:]}")
    claim = replace(claim_record("a", allocation(GPU_0, 1), on=NODE), ref=ref)

    assert spec_of(claim)["cdiVersion"] == "0.5.0"
    assert violations(spec_of(claim)) == []


def test_container_of_one_request_gets_its_own_card_and_limits_of_all_cards() -> None:
    claim = claim_record(
        "a",
        allocation(GPU_0, 1, tflops="31.2", vram="1Gi", request="small"),
        allocation(GPU_1, 2, tflops="156", vram="40Gi", request="large"),
        on=NODE,
    )

    small = env(claim, "small")

    assert (small["TF_CUDA_SM_PERCENT_LIMIT"], small["TF_GPU_MEMORY_LIMIT"]) == ("10", "1024")
    assert json.loads(small["TENSOR_FUSION_CUDA_UP_LIMIT"]) == {UUID_0: 10, UUID_1: 50}
    own, *_ = injected(spec_of(claim), list(cdi.ids_by_share(claim)[0]))
    assert own["deviceNodes"] == [{"path": "/dev/nvidia0"}]


def test_each_share_has_a_variable_of_its_own() -> None:
    claim = claim_record(
        "a",
        allocation(GPU_0, 1),
        allocation(GPU_0, 2),
        exclusive_allocation(GPU_1),
        exclusive_allocation(GPU_2, request="watch", admin_access=True),
        on=NODE,
    )

    described = variables_with_prefix(env(claim), "TENSOR_FUSION_SHARE_").values()

    assert [(item["uuid"], item.get("vram")) for item in map(json.loads, described)] == [
        (UUID_0, "16Gi"),
        (UUID_0, "16Gi"),
        (UUID_1, "80Gi"),
        (UUID_2, None),
    ]


def test_toolkit_device_is_the_last_id_and_driver_mounts_replace_it() -> None:
    mount = Mount(host_path="/opt/lib/libcuda.so.1", container_path="/usr/lib/libcuda.so.1")
    toolkit = {**NODE.access, GPU_0: CardAccess(toolkit_device=f"nvidia.com/gpu={UUID_0}")}
    by_toolkit = claim_record("a", allocation(GPU_0, 1), on=replace(NODE, access=toolkit))
    by_mounts = replace(claim_record("a", allocation(GPU_0, 1), on=NODE), driver_mounts=(mount,))

    assert [name.partition("=")[0] for name in cdi.ids_by_share(by_toolkit)[0]] == [
        "tensor-fusion.ai/vgpu",
        "tensor-fusion.ai/vgpu",
        "nvidia.com/gpu",
    ]
    assert "mounts" not in spec_of(by_toolkit)["containerEdits"]
    assert spec_of(by_mounts)["containerEdits"]["mounts"] == [mount.as_cdi()]
    assert violations(spec_of(by_mounts)) == []


def test_device_nodes_from_another_folder_are_under_dev_in_the_container() -> None:
    elsewhere = ("/run/host/dev/nvidiactl",)
    record = replace(claim_record("a", allocation(GPU_0, 1), on=NODE), common_nodes=elsewhere)

    assert spec_of(record)["cdiVersion"] == "0.5.0"
    assert spec_of(record)["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/run/host/dev/nvidiactl"}
    ]


LIMITS = st.builds(
    Limit, sm_percent=st.integers(1, 100), vram_bytes=st.integers(1, 80 * 1024).map(MIB.__mul__)
)


@st.composite
def claims(draw: st.DrawFn) -> PreparedClaim:
    """Return claims with shares, whole devices and admin access, on several cards and requests."""
    requests = draw(
        st.lists(
            st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    watching = draw(st.booleans())
    isolation = draw(st.sampled_from(Isolation))
    limited = isolation is not Isolation.SHARED and draw(st.integers(0, 9)) > 0
    shares = []
    for number in range(draw(st.integers(1, 6))):
        card = gpu(draw(st.integers(0, 3)), minor=draw(st.sampled_from([None, 0])))
        shared = draw(st.booleans())
        shares.append(
            PreparedShare(
                request=draw(st.sampled_from(requests)),
                pool="default/node-01",
                # no other share is on a device that is allocated exclusively
                device=card.uuid.lower() if shared else f"gpu-{number}",
                gpu_uuid=card.uuid if shared else f"GPU-{number}",
                share_id=share_id(number) if shared else None,
                consumed={"vram": Quantity.of_bytes(MIB)},
                exclusive=not shared,
                admin_access=False,
                device_nodes=() if card.minor is None else ("/dev/nvidia0",),
                isolation=isolation,
                qos=Qos.MEDIUM,
                toolkit_device=draw(st.sampled_from([None, f"nvidia.com/gpu={card.uuid}"])),
                pci_bus_id="",
                wanted_vram_bytes=MIB,
                limit=draw(LIMITS) if limited else None,
            )
        )
    if watching:
        shares.append(replace(shares[0], request="watch", admin_access=True, limit=None))
    metadata = DeviceMetadata(attributes={}, pod_claim_name=draw(st.sampled_from(["", "gpu"])))
    return PreparedClaim(
        ref=ClaimRef(namespace="default", name="a", uid=str(draw(st.uuids()))),
        shares=tuple(shares),
        metadata=draw(st.sampled_from([None, metadata])),
    )


@settings(max_examples=examples(50))
@given(claims())
def test_every_claim_has_a_spec_that_runtimes_load_and_containers_can_use(
    claim: PreparedClaim,
) -> None:
    spec, answer = spec_of(claim), cdi.ids_by_share(claim)

    assert violations(spec) == []
    assert json.loads(json.dumps(spec)) == spec
    assert all(device["name"].startswith(claim.ref.uid) for device in spec["devices"])
    # Every ID is defined in the spec, and returned once for each request.
    assert all(first.partition("=")[2].count(":") == 0 for first, *_ in answer)
    defined = {f"tensor-fusion.ai/vgpu={device['name']}" for device in spec["devices"]}
    assert {name for ids in answer for name in ids if name in defined} == defined
    by_request: dict[str, list[str]] = {}
    for share, ids in zip(claim.shares, answer, strict=True):
        by_request.setdefault(share.request, []).extend(ids)
    for of_request in by_request.values():
        assert len(of_request) == len(set(of_request))
        assert all(name in defined or name.startswith("nvidia.com/") for name in of_request)
        edits = injected(spec, of_request)
        variables = [text.partition("=")[0] for each in edits for text in each.get("env", ())]
        assert len(variables) == len(set(variables))


@settings(max_examples=examples(50))
@given(claims(), st.data())
def test_every_card_has_a_limit_for_any_requests_that_a_container_uses(
    claim: PreparedClaim, data: st.DataObject
) -> None:
    limited = [(item, item.limit) for item in claim.shares if item.limit]
    assume(limited)
    chosen = data.draw(st.sets(st.sampled_from([item.request for item, _ in limited]), min_size=1))

    variables = env(claim, *chosen)

    percents = json.loads(variables["TENSOR_FUSION_CUDA_UP_LIMIT"])
    amounts = json.loads(variables["TENSOR_FUSION_CUDA_MEM_LIMIT"])
    for uuid in {item.gpu_uuid for item, _ in limited if item.request in chosen}:
        of_card = [limit for item, limit in limited if item.gpu_uuid == uuid]
        assert 1 <= percents[uuid] <= sum(limit.sm_percent for limit in of_card)
        assert 0 < amounts[uuid] <= sum(limit.vram_bytes for limit in of_card)
    assert 1 <= int(variables["TF_CUDA_SM_PERCENT_LIMIT"]) <= max(percents.values())
    assert 0 < int(variables["TF_GPU_MEMORY_LIMIT"]) * MIB <= max(amounts.values())


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
    assert violations(spec) == []
    found: dict[str, list[Any]] = {}
    for share, ids in zip(claim.shares, cdi.ids_by_share(claim), strict=True):
        for edits in injected(spec, list(ids)):
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
                        "pool": MEMBER.pool,
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

    mounts = {request: len(found) for request, found in mounts_by_id(claim).items()}
    assert mounts == {"one": 1, "two": 1, "watch": 1}
    assert {
        request: [device["name"] for device in newest["requests"][0]["devices"]]
        for request, (newest, _) in objects_of(claim).items()
    } == {"one": [GPU_0], "two": [GPU_1, GPU_2], "watch": [GPU_2]}


def test_a_claim_without_metadata_has_the_spec_and_ids_of_before() -> None:
    record = replace(described(allocation(GPU_0, 1)), metadata=None)

    spec = cdi.spec(record, ENFORCER, metadata_folder=FOLDER)

    assert FOLDER not in json.dumps(spec)
    assert "metadata" not in str(cdi.ids_by_share(record))
    assert "metadata" not in record.as_json()


@pytest.mark.parametrize("claim_name", ["a.b", "resourceclaims"])
@pytest.mark.parametrize("request_name", ["gpu", "gpu-gpu", "a"])
def test_names_of_files_lead_back_to_their_claims(claim_name: str, request_name: str) -> None:
    ref = ClaimRef(namespace="default", name=claim_name, uid="0-a-b")
    record = replace(described(allocation(GPU_0, 1, request=request_name)), ref=ref)

    assert record.metadata is not None
    (name,) = device_metadata.documents(record, record.metadata)

    assert name == f"0-a-b_{request_name}"
    assert device_metadata.claim_uid(name) == ref.uid


@pytest.mark.parametrize("found", ["../../etc", "a/b", "a.b", "A", "a" * 64, "-", " ", "\ud800"])
def test_an_annotation_that_names_no_entry_of_a_pod_is_refused(found: str) -> None:
    claim = allocated_claim("a", allocation(GPU_0, 1), annotations={POD_CLAIM_ANNOTATION: found})

    with pytest.raises(ClaimError, match=f"annotation {POD_CLAIM_ANNOTATION}: found"):
        device_metadata.of_claim(claim, NODE.devices)


def test_other_attributes_make_the_next_generation_and_equal_ones_do_not() -> None:
    claim = allocated_claim("a", allocation(GPU_0, 1), allocation(GPU_1, 2))
    metadata = device_metadata.of_claim(claim, NODE.devices)
    card = NODE.devices[GPU_0]
    attributes = {**card.attributes, names.ATTR_PCI_BUS_ID: "0000:99:00.0"}

    after = device_metadata.refreshed(metadata, {GPU_0: replace(card, attributes=attributes)})

    moved = {**metadata.attributes[GPU_0], names.ATTR_PCI_BUS_ID: {"string": "0000:99:00.0"}}
    assert after == replace(
        metadata, generation=2, attributes={**metadata.attributes, GPU_0: moved}
    )
    assert device_metadata.refreshed(metadata, NODE.devices) is metadata


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


@pytest.mark.parametrize(
    ("granted", "policy"),
    [
        (exclusive_allocation(GPU_0), share_policy(isolation=Isolation.SHARED)),
        (allocation(GPU_0, 1), share_policy(limiter=False)),
        (exclusive_allocation(GPU_0, admin_access=True), share_policy()),
    ],
    ids=["shared", "without limiter", "admin access"],
)
def test_share_without_a_limit_has_no_limits_entry(
    granted: Allocation, policy: SharePolicy
) -> None:
    document = prepared.limits_document(claim_record("a", granted, on=NODE, policy=policy))

    assert document is not None
    assert "limits" not in document["shares"][0]


def test_limits_document_says_of_which_claim_it_is_and_what_its_shares_have() -> None:
    record = claim_record("a", allocation(GPU_0, 1), on=NODE)
    (share,) = record.shares
    assert share.limit is not None

    assert prepared.remains(prepared.limits_document(record)) == prepared.Remains(
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
