"""CDI spec of a claim: every runtime loads it, and it has a limit for every card."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import (
    CardAccess,
    DeviceMetadata,
    Limit,
    Mount,
    PreparedClaim,
    PreparedShare,
)
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import ENFORCER, node_facts
from tests.support.cdi_rules import env, injected, spec_of, violations
from tests.support.tally import examples

NODE = node_facts(*gpus(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
UUID_0, UUID_1, UUID_2 = (card.uuid for card in gpus(3))
LETTER_FIRST = ClaimRef(namespace="default", name="a", uid="fa0b0c0d-0000-4000-8000-000000000001")
DIGIT_FIRST = replace(LETTER_FIRST, uid="0a0b0c0d-0000-4000-8000-000000000001")


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
        "cdiVersion": "0.3.0",
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


def test_claim_without_our_devices_has_no_ids() -> None:
    assert cdi.ids_by_share(claim_record("a", on=NODE)) == ()


@pytest.mark.parametrize(("ref", "version"), [(LETTER_FIRST, "0.3.0"), (DIGIT_FIRST, "0.5.0")])
def test_spec_has_the_lowest_version_that_allows_its_names(ref: ClaimRef, version: str) -> None:
    claim = replace(claim_record("a", allocation(GPU_0, 1), on=NODE), ref=ref)

    assert spec_of(claim)["cdiVersion"] == version
    assert violations(spec_of(claim)) == []


def test_container_of_one_request_gets_its_own_card_and_limits_of_all_cards() -> None:
    claim = claim_record(
        "a",
        allocation(GPU_0, 1, tflops="31.2", vram="1Gi", request="small"),
        allocation(GPU_1, 2, tflops="156", vram="40Gi", request="large"),
        on=NODE,
    )

    small = env(claim, "small")

    assert small["TF_CUDA_SM_PERCENT_LIMIT"] == "10"
    assert small["TF_GPU_MEMORY_LIMIT"] == "1024"
    assert json.loads(small["TENSOR_FUSION_CUDA_UP_LIMIT"]) == {UUID_0: 10, UUID_1: 50}
    by_request = dict(zip(("small", "large"), cdi.ids_by_share(claim), strict=True))
    nodes = [
        edits["deviceNodes"] for edits in injected(spec_of(claim), list(by_request["small"]))[:1]
    ]
    assert nodes == [[{"path": "/dev/nvidia0"}]]


def test_each_share_has_a_variable_of_its_own() -> None:
    claim = claim_record(
        "a",
        allocation(GPU_0, 1),
        allocation(GPU_0, 2),
        exclusive_allocation(GPU_1),
        exclusive_allocation(GPU_2, request="watch", admin_access=True),
        on=NODE,
    )

    descriptions = [
        json.loads(value)
        for name, value in env(claim).items()
        if name.startswith("TENSOR_FUSION_SHARE_")
    ]

    assert [(item["uuid"], item.get("vram")) for item in descriptions] == [
        (UUID_0, "16Gi"),
        (UUID_0, "16Gi"),
        (UUID_1, "80Gi"),
        (UUID_2, None),
    ]


def test_toolkit_device_is_the_last_id_and_driver_mounts_replace_it() -> None:
    mount = Mount(host_path="/opt/lib/libcuda.so.1", container_path="/usr/lib/libcuda.so.1")
    node = replace(
        NODE,
        access={**NODE.access, GPU_0: CardAccess(toolkit_device=f"nvidia.com/gpu={UUID_0}")},
    )
    by_toolkit = claim_record("a", allocation(GPU_0, 1), on=node)
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
    record = replace(
        claim_record("a", allocation(GPU_0, 1), on=NODE),
        common_nodes=("/run/host/dev/nvidiactl",),
    )

    document = cdi.spec(record, ENFORCER)

    assert document is not None
    assert document["cdiVersion"] == "0.5.0"
    assert document["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/run/host/dev/nvidiactl"}
    ]


REQUESTS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)


LIMITS = st.builds(
    Limit, sm_percent=st.integers(1, 100), vram_bytes=st.integers(1, 80 * 1024).map(MIB.__mul__)
)


@st.composite
def claims(draw: st.DrawFn) -> PreparedClaim:
    """Return claims with shares, whole devices and admin access, on several cards and requests."""
    requests = draw(st.lists(REQUESTS, min_size=1, max_size=3, unique=True))
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
def test_every_claim_has_a_spec_that_runtimes_load(claim: PreparedClaim) -> None:
    spec = spec_of(claim)

    assert violations(spec) == []
    assert json.loads(json.dumps(spec)) == spec
    assert all(device["name"].startswith(claim.ref.uid) for device in spec["devices"])


@settings(max_examples=examples(50))
@given(claims())
def test_every_id_is_defined_in_the_spec_and_returned_once(claim: PreparedClaim) -> None:
    answer = cdi.ids_by_share(claim)
    ids = [name for names in answer for name in names]
    of_requests = [
        (item.request, name)
        for item, names in zip(claim.shares, answer, strict=True)
        for name in names
    ]

    assert len(answer) == len(claim.shares)
    assert len(of_requests) == len(set(of_requests))
    assert all(names[0].partition("=")[2].count(":") == 0 for names in answer)
    defined = {f"tensor-fusion.ai/vgpu={device['name']}" for device in spec_of(claim)["devices"]}
    assert {name for name in ids if name.startswith("tensor-fusion.ai/")} == defined


@settings(max_examples=examples(50))
@given(claims())
def test_container_of_one_request_has_no_duplicate_variables(claim: PreparedClaim) -> None:
    for request in {item.request for item in claim.shares}:
        ids = [
            name
            for item, names in zip(claim.shares, cdi.ids_by_share(claim), strict=True)
            for name in names
            if item.request == request
        ]
        variables = [
            variable.partition("=")[0]
            for edits in injected(spec_of(claim), ids)
            for variable in edits.get("env", [])
        ]

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
