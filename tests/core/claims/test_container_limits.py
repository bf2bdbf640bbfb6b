"""The environment and the mounts that a container gets for its claim and its pod's annotations."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.core.claims.container_cases import (
    ENFORCER,
    HARD,
    OF_HARD_CLASS,
    OF_SHARED_CLASS,
    OVERCOMMITTED,
    OVERSUBSCRIBED,
    SHARED,
    TWO,
    TWO_A100,
    WHOLE,
    WITH_HARD_LIMITER,
    Claimed,
    admitted_claim,
    container_edits,
    one_card,
)
from tests.support.builders.allocations import exclusive_allocation
from tests.support.builders.claims import fitted_claim
from tests.support.builders.gpus import gpus
from tests.support.builders.pods import pod_annotations

BYPASSES_EMPTIED: Final = {
    "DISABLE_GPU_LIMITER": "",
    "TF_ENABLE_DISPATCH_FORWARD": "",
    "TF_DISABLE_MEMORY_MANAGER": "",
    "TF_SKIP_HOOKS_IF_NO_LIMIT": "",
    "ENABLE_NVML_HOOKS": "",
    "ENABLE_CUDA_HOOKS": "",
}
LIMITER: Final = {
    "TF_SHM_PATH": "/run/tensor-fusion/shm/shm",
    "SHM_PATH": "/run/tensor-fusion/shm",
    "POD_NAMESPACE": "default",
    "POD_NAME": "p",
    "HYPERVISOR_IP": "192.0.2.7",
    "HYPERVISOR_PORT": "8001",
}
LIMITER_MOUNTS: Final = {
    "/tensor-fusion-limiter/libcuda_limiter.so": "ro",
    "/run/tensor-fusion/shm": "rw",
    "/etc/ld.so.preload": "ro",
}
COMMON: Final = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

UUIDS: Final = [card.uuid for card in gpus(2)]
NO_POD: Final[tuple[dict[str, str], ...]] = ()


def limits(mib: int, *percent_and_gib: tuple[int, float]) -> dict[str, str]:
    """Return the limit variables: MiB of the smallest card, then each card's percent and GiB."""
    by_uuid = list(zip(UUIDS, percent_and_gib, strict=False))
    percents = {uuid: percent for uuid, (percent, _) in by_uuid}
    amounts = {uuid: int(gib * GIB) for uuid, (_, gib) in by_uuid}
    assert min(amounts.values()) == mib * MIB
    return {
        "TF_CUDA_SM_PERCENT_LIMIT": str(min(percents.values())),
        "TF_GPU_MEMORY_LIMIT": str(mib),
        "TF_CUDA_MEMORY_LIMIT": str(mib),
        "TENSOR_FUSION_CUDA_UP_LIMIT": json.dumps(percents, separators=(",", ":")),
        "TENSOR_FUSION_CUDA_MEM_LIMIT": json.dumps(amounts, separators=(",", ":")),
        **BYPASSES_EMPTIED,
    }


def soft(mib: int, *percent_and_gib: tuple[int, float]) -> tuple[dict[str, str], dict[str, str]]:
    env = {"TF_ISOLATION_MODE": "soft", **limits(mib, *percent_and_gib), **LIMITER}
    return COMMON | env, LIMITER_MOUNTS


def hard(mib: int, *percent_and_gib: tuple[int, float]) -> tuple[dict[str, str], dict[str, str]]:
    return COMMON | {"TF_ISOLATION_MODE": "hard", **limits(mib, *percent_and_gib)}, {}


def no_limits(mode: str) -> tuple[dict[str, str], dict[str, str]]:
    return COMMON | {"TF_ISOLATION_MODE": mode}, {}


# Claim, annotations of its pods, environment and mounts of the container.
TABLE: Final[list[tuple[Claimed, tuple[dict[str, str], ...], Any]]] = [
    # Soft isolation
    (one_card(), NO_POD, soft(20480, (25, 20))),
    (one_card(), (pod_annotations(),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(isolation="soft"),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(qos="critical"),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(tflops_limit="156"),), soft(20480, (50, 20))),
    (one_card(), (pod_annotations(vram_limit="30Gi"),), soft(30720, (25, 30))),
    (
        one_card(),
        (pod_annotations(tflops_limit="156.001", vram_limit="30Gi"),),
        soft(30720, (51, 30)),
    ),
    (one_card("0", "1Mi"), NO_POD, soft(1, (1, 1 / 1024))),
    (one_card("312", "80Gi"), NO_POD, soft(81920, (100, 80))),
    # A limit equal to its request; 0 counts as absent; the smallest limit of several pods
    (one_card(), (pod_annotations(tflops_limit="78", vram_limit="20Gi"),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(tflops_limit="0", vram_limit="0"),), soft(20480, (25, 20))),
    (
        one_card(),
        (pod_annotations(vram_limit="40Gi"), pod_annotations(vram_limit="30Gi"), pod_annotations()),
        soft(30720, (25, 30)),
    ),
    # Several cards
    (TWO, NO_POD, soft(10240, (25, 20), (50, 10))),
    (TWO, (pod_annotations(vram_limit="30Gi"),), soft(30720, (25, 30), (50, 30))),
    (TWO, (pod_annotations(tflops_limit="312"),), soft(10240, (100, 20), (100, 10))),
    # Above the card
    (one_card(), (pod_annotations(tflops_limit="1000"),), soft(20480, (100, 20))),
    (one_card(), (pod_annotations(vram_limit="100Gi"),), soft(81920, (25, 80))),
    # Clamped to what other tenants left, never below the request
    (one_card(beside=("30Gi",)), (pod_annotations(vram_limit="60Gi"),), soft(51200, (25, 50))),
    (
        one_card(beside=("30Gi", "30Gi")),
        (pod_annotations(vram_limit="60Gi"),),
        soft(20480, (25, 20)),
    ),
    (
        one_card(beside=("30Gi",), node=OVERCOMMITTED),
        (pod_annotations(vram_limit="60Gi"),),
        soft(61440, (25, 60)),
    ),
    # Oversubscription: percentages are of the physical card
    (one_card(node=OVERSUBSCRIBED), NO_POD, soft(20480, (25, 20))),
    (one_card("400", "100Gi", node=OVERSUBSCRIBED), NO_POD, soft(102400, (100, 100))),
    (
        one_card(node=OVERSUBSCRIBED),
        (pod_annotations(vram_limit="110Gi"),),
        soft(112640, (25, 110)),
    ),
    (
        one_card(node=OVERSUBSCRIBED),
        (pod_annotations(vram_limit="200Gi"),),
        soft(122880, (25, 120)),
    ),
    (
        one_card(node=OVERSUBSCRIBED, beside=("50Gi",)),
        (pod_annotations(vram_limit="200Gi"),),
        soft(71680, (25, 70)),
    ),
    # Claim and class precede the pod
    (
        one_card(of_claim={"limits": {"vram": "25Gi"}}),
        (pod_annotations(vram_limit="30Gi"),),
        soft(25600, (25, 25)),
    ),
    (
        one_card(of_class={"limits": {"vram": "25Gi"}, "overridable": False}),
        (pod_annotations(vram_limit="30Gi"),),
        soft(25600, (25, 25)),
    ),
    (one_card(of_class={"isolation": "soft"}), (HARD,), soft(20480, (25, 20))),
    # Hard isolation by a tenant, where the node's enforcer brings a limiter for it
    (one_card(node=WITH_HARD_LIMITER), (HARD,), hard(20480, (25, 20))),
    (one_card(of_claim=OF_HARD_CLASS, node=WITH_HARD_LIMITER), NO_POD, hard(20480, (25, 20))),
    # Hard isolation by a class: a limit that could not be taken back is the request
    (one_card(of_class=OF_HARD_CLASS), NO_POD, hard(20480, (25, 20))),
    (one_card(of_class=OF_HARD_CLASS), (HARD,), hard(20480, (25, 20))),
    (
        one_card(of_class=OF_HARD_CLASS),
        (pod_annotations(tflops_limit="156"),),
        hard(20480, (25, 20)),
    ),
    (
        one_card(of_class=OF_HARD_CLASS, node=OVERCOMMITTED),
        (pod_annotations(tflops_limit="156"),),
        hard(20480, (50, 20)),
    ),
    (
        one_card(of_class=OF_HARD_CLASS),
        (pod_annotations(vram_limit="30Gi"),),
        hard(20480, (25, 20)),
    ),
    (
        one_card(of_class=OF_HARD_CLASS, node=OVERCOMMITTED),
        (pod_annotations(vram_limit="30Gi"),),
        hard(30720, (25, 30)),
    ),
    (replace(TWO, of_class=OF_HARD_CLASS), NO_POD, hard(10240, (25, 20), (50, 10))),
    (
        one_card("400", "100Gi", of_class=OF_HARD_CLASS, node=OVERSUBSCRIBED),
        NO_POD,
        hard(102400, (100, 100)),
    ),
    # The claim's mode precedes that of its class, the pod's does not
    (one_card(of_class=OF_HARD_CLASS), (pod_annotations(isolation="soft"),), hard(20480, (25, 20))),
    (
        one_card(of_class=OF_HARD_CLASS, of_claim={"isolation": "soft"}),
        NO_POD,
        soft(20480, (25, 20)),
    ),
    # Shared isolation, without limits: a tenant may choose it for whole cards
    (WHOLE, (SHARED,), no_limits("shared")),
    (
        replace(WHOLE, of_claim=OF_SHARED_CLASS),
        (pod_annotations(isolation="soft"),),
        no_limits("shared"),
    ),
    (replace(TWO, cards=(("312", "80Gi"),) * 2), (SHARED,), no_limits("shared")),
    (one_card("468", "120Gi", node=OVERSUBSCRIBED), (SHARED,), no_limits("shared")),
    # Shared isolation by a class, for any amounts
    (one_card(of_class=OF_SHARED_CLASS), NO_POD, no_limits("shared")),
    (one_card(of_class=OF_SHARED_CLASS), (SHARED,), no_limits("shared")),
    (
        one_card(of_class=OF_SHARED_CLASS),
        (pod_annotations(vram_limit="30Gi"),),
        no_limits("shared"),
    ),
    (replace(TWO, of_class=OF_SHARED_CLASS), NO_POD, no_limits("shared")),
    # A class that is not overridable precedes a tenant's choice
    (
        one_card(of_class={"isolation": "soft", "overridable": False}, of_claim=OF_HARD_CLASS),
        (SHARED,),
        soft(20480, (25, 20)),
    ),
    # Only an administrator's class turns the limiter off
    (one_card(of_class={"limiter": False}), NO_POD, no_limits("soft")),
    (
        one_card(of_class={"limiter": False, "isolation": "hard"}),
        (pod_annotations(vram_limit="30Gi"),),
        no_limits("hard"),
    ),
]


@pytest.mark.parametrize(("claimed", "pods", "expected"), TABLE)
def test_container_gets_environment_and_mounts(
    claimed: Claimed,
    pods: tuple[dict[str, str], ...],
    expected: tuple[dict[str, str], dict[str, str]],
) -> None:
    assert container_edits(admitted_claim(claimed, *pods)) == expected


def test_soft_claim_needs_the_host_paths_of_its_mounts() -> None:
    claim = admitted_claim(one_card())
    spec = cdi.spec(claim, ENFORCER)
    assert spec is not None

    needs = ENFORCER.needs(claim)

    mounts = spec["devices"][1]["containerEdits"]["mounts"]
    needed = [*needs.files, *(folder.path for folder in needs.folders)]
    needed += [text.path for text in needs.texts]
    assert [mount["hostPath"] for mount in mounts] == needed
    assert needed == [
        "/run/tensor-fusion/libcuda_limiter.so",
        "/run/tensor-fusion/shm/default/p",
        "/run/tensor-fusion/preload/ld.so.preload",
    ]


def test_admin_access_has_no_limits() -> None:
    claim = fitted_claim(
        "a", exclusive_allocation(next(iter(TWO_A100.devices)), admin_access=True), on=TWO_A100
    )

    assert container_edits(claim) == (COMMON, {})
    assert ENFORCER.needs(claim).files == ()
