"""CDI spec of a claim: every runtime loads it, and it has a limit for every card."""

import json
from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.access import CardAccess
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.mounts import Mount
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import fitted_claim
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import ENFORCER, node_offer
from tests.support.cdi_rules import env, injected, spec_of, violations

NODE = node_offer(*gpus(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
UUID_0, UUID_1, UUID_2 = (card.uuid for card in gpus(3))
LETTER_FIRST = ClaimRef(namespace="default", name="a", uid="fa0b0c0d-0000-4000-8000-000000000001")
DIGIT_FIRST = replace(LETTER_FIRST, uid="0a0b0c0d-0000-4000-8000-000000000001")


def test_spec_of_one_share_has_device_nodes_limits_and_common_edits() -> None:
    claim = replace(
        fitted_claim("a", allocation(GPU_0, 1, tflops="78", vram="20Gi"), on=NODE), ref=LETTER_FIRST
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


def test_claim_without_our_devices_has_no_spec_and_no_ids() -> None:
    claim = fitted_claim("a", on=NODE)

    assert cdi.spec(claim, ENFORCER) is None
    assert cdi.ids_by_share(claim) == ()


@pytest.mark.parametrize(("ref", "version"), [(LETTER_FIRST, "0.3.0"), (DIGIT_FIRST, "0.5.0")])
def test_spec_has_the_lowest_version_that_allows_its_names(ref: ClaimRef, version: str) -> None:
    claim = replace(fitted_claim("a", allocation(GPU_0, 1), on=NODE), ref=ref)

    assert spec_of(claim)["cdiVersion"] == version
    assert violations(spec_of(claim)) == []


def test_container_of_one_request_gets_its_own_card_and_limits_of_all_cards() -> None:
    claim = fitted_claim(
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
    claim = fitted_claim(
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
    by_toolkit = fitted_claim("a", allocation(GPU_0, 1), on=node)
    by_mounts = replace(fitted_claim("a", allocation(GPU_0, 1), on=NODE), driver_mounts=(mount,))

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
        fitted_claim("a", allocation(GPU_0, 1), on=NODE), common_nodes=("/run/host/dev/nvidiactl",)
    )

    document = cdi.spec(record, ENFORCER)

    assert document is not None
    assert document["cdiVersion"] == "0.5.0"
    assert document["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/run/host/dev/nvidiactl"}
    ]
