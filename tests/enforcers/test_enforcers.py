"""The built-in enforcers: additions to their containers, needs, evidence and refusals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest

from tensorfusion_dra import testing
from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    Enforcer,
    Folder,
    Needs,
    TextFile,
)
from tensorfusion_dra.core.claims.prepared import Limit, Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import cdi_rules, quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.enforcers.preload import PreloadMethod
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.cdi_rules import variables_with_prefix

HAMI_LIBRARY: Final = "/usr/local/vgpu/libvgpu.so.2.8.0"
HAMI: Final = HamiCore(library=HAMI_LIBRARY)
HAMI_PRELOAD: Final = "/run/tensor-fusion/hami-core/ld.so.preload"
HAMI_CACHES: Final = "/run/tensor-fusion/hami-core/claims/uid-a"
MPS: Final = Mps(pipes="/run/mps/pipe", shm="/run/mps/shm")
TENSOR_FUSION: Final = TensorFusion()
SMALL: Final = {"tflops": quantity.parse("10"), "vram": quantity.parse("1Gi")}
ONE: Final = prepared_claim(prepared_share(0, limit(30, 16)))
HARD: Final = prepared_claim(prepared_share(0, limit(30, 16), isolation=Isolation.HARD))
SIMULATED: Final = prepared_claim(simulated_share(0, limit(30, 16)))


def edits(by: Enforcer, of_claim: PreparedClaim, request: str = "gpu") -> Edits:
    return by.edits(of_claim, [s for s in of_claim.shares if s.request == request])


def limits(found: Edits) -> dict[str, str]:
    """Return the variables of HAMi-core's limits."""
    return variables_with_prefix(found.env, "CUDA_DEVICE_MEMORY_LIMIT") | variables_with_prefix(
        found.env, "CUDA_DEVICE_SM_LIMIT"
    )


EVERY: Final = pytest.mark.parametrize(
    "by", [HAMI, MPS, TENSOR_FUSION, Nvidia()], ids=lambda by: by.name
)


@EVERY
@pytest.mark.parametrize("isolation", list(Isolation))
def test_shares_without_a_limit_get_only_their_isolation(
    by: Enforcer, isolation: Isolation
) -> None:
    unlimited = prepared_claim(
        prepared_share(0, isolation=isolation), prepared_share(1, isolation=isolation)
    )

    assert edits(by, unlimited) == Edits(env={"TF_ISOLATION_MODE": isolation.value})
    assert by.needs(unlimited) == by.needs(prepared_claim(admin_share())) == Needs()


@EVERY
def test_simulated_card_has_limits_but_nothing_of_the_host(by: Enforcer) -> None:
    assert edits(by, SIMULATED) == Edits(env=edits(by, ONE).env)
    assert by.needs(SIMULATED) == Needs()


@pytest.mark.parametrize("by", [HAMI, MPS], ids=lambda by: by.name)
def test_hard_and_soft_isolation_have_the_same_fixed_limits(by: Enforcer) -> None:
    hard, soft = edits(by, HARD), edits(by, ONE)

    assert variables_with_prefix(hard.env, "CUDA_") == variables_with_prefix(soft.env, "CUDA_")
    assert hard.mounts == soft.mounts
    assert by.facts.fixed_compute == set(Isolation)


@pytest.mark.parametrize(
    ("by", "library"),
    [
        (HamiCore(library=HAMI_LIBRARY, method=PreloadMethod.ENV), "/usr/local/vgpu/libvgpu.so"),
        (TensorFusion(method=PreloadMethod.ENV), "/tensor-fusion-limiter/libcuda_limiter.so"),
    ],
)
def test_without_a_preload_file_a_variable_loads_the_library(
    by: HamiCore | TensorFusion, library: str
) -> None:
    found = edits(by, ONE)

    assert found.env["LD_PRELOAD"] == library
    assert "/etc/ld.so.preload" not in {mount.container_path for mount in found.mounts}
    assert by.needs(ONE).texts == ()


@pytest.mark.parametrize(
    ("by", "needs"),
    [
        (
            HAMI,
            Needs(
                files=(HAMI_LIBRARY,),
                folders=(Folder(path=HAMI_CACHES, mode=0o777),),  # every user may write
                texts=(TextFile(path=HAMI_PRELOAD, text="/usr/local/vgpu/libvgpu.so\n"),),
            ),
        ),
        # A client without a listening daemon has no limits.
        (MPS, Needs(files=("/run/mps/shm",), sockets=("/run/mps/pipe/control",))),
        (
            TENSOR_FUSION,
            Needs(
                files=("/run/tensor-fusion/libcuda_limiter.so",),
                folders=(Folder(path="/run/tensor-fusion/shm/team-a/trainer-0", mode=0o755),),
                texts=(
                    TextFile(
                        path="/run/tensor-fusion/preload/ld.so.preload",
                        text="/tensor-fusion-limiter/libcuda_limiter.so\n",
                    ),
                ),
            ),
        ),
    ],
)
def test_claim_needs_what_its_enforcer_mounts_or_asks(by: Enforcer, needs: Needs) -> None:
    assert by.needs(ONE) == needs


@pytest.mark.parametrize(
    ("shares", "memory", "percents"),
    [
        (ONE.shares, ["16384m"] * 2, ["30"] * 2),
        # By PCI bus, and not in the order of the scheduler.
        (
            [
                prepared_share(0, limit(70, 4), pci_bus_id="0001:01:00.0"),
                prepared_share(1, limit(20, 8), pci_bus_id="0000:c1:00.0"),
                prepared_share(2, limit(50, 16), pci_bus_id="0000:9:00.0"),
            ],
            ["4096m", "16384m", "8192m", "4096m"],
            ["20", "50", "20", "70"],
        ),
        # Shares of one card add up to at most the whole card.
        (
            [prepared_share(0, limit(60, 8), share_id=name) for name in "ab"],
            ["16384m"] * 2,
            ["100"] * 2,
        ),
        # Memory is rounded down, but never to 0, which means unlimited.
        ([prepared_share(0, Limit(sm_percent=1, vram_bytes=2 * MIB - 1))], ["1m"] * 2, ["1"] * 2),
        ([prepared_share(0, Limit(sm_percent=1, vram_bytes=MIB - 1))], ["1m"] * 2, ["1"] * 2),
        # A card without a limit gets the smallest one of the others.
        ([prepared_share(0), prepared_share(1, limit(30, 16))], ["16384m"] * 3, ["30"] * 3),
        # Equal limits need no order of the cards.
        (
            [prepared_share(card, limit(30, 16), pci_bus_id="") for card in range(2)],
            ["16384m"] * 3,
            ["30"] * 3,
        ),
    ],
)
def test_hami_core_limits_each_card_by_its_index_and_any_other_by_the_smallest_limit(
    shares: Sequence[PreparedShare], memory: list[str], percents: list[str]
) -> None:
    claim = prepared_claim(*shares)

    assert limits(edits(HAMI, claim)) == {
        f"CUDA_DEVICE_{kind}_LIMIT{index}": text
        for kind, texts in (("MEMORY", memory), ("SM", percents))
        for index, text in zip(["", "_0", "_1", "_2"], texts, strict=False)
    }
    assert HAMI.needs(claim).files


def test_hami_core_gets_its_library_and_a_cache_file_and_cannot_be_disabled() -> None:
    assert edits(HAMI, ONE) == Edits(
        env={
            "TF_ISOLATION_MODE": "soft",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/claims/gpu.cache",
            "CUDA_DISABLE_CONTROL": "",
            "CUDA_REDIRECT": "",
            "GPU_CORE_UTILIZATION_POLICY": "force",
            "CUDA_TASK_PRIORITY": "1",
            **limits(edits(HAMI, ONE)),
        },
        mounts=(
            Mount(host_path=HAMI_LIBRARY, container_path="/usr/local/vgpu/libvgpu.so"),
            Mount(host_path=HAMI_CACHES, container_path="/usr/local/vgpu/claims", read_only=False),
            Mount(host_path=HAMI_CACHES, container_path="/tmp/vgpulock", read_only=False),
            Mount(host_path=HAMI_PRELOAD, container_path="/etc/ld.so.preload"),
        ),
    )
    two = prepared_claim(share("a", 0), share("b", 1))
    caches = [edits(HAMI, two, each).env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for each in "aba"]
    assert caches == [f"/usr/local/vgpu/claims/{each}.cache" for each in "aba"]


def share(request: str, card: int, *, percent: int = 30, gib: int = 16) -> PreparedShare:
    return prepared_share(card, limit(percent, gib), request=request)


DIFFERENT: Final = "found different limits .*16384Mi"


@pytest.mark.parametrize(
    ("by", "shares", "text"),
    [
        (HAMI, [share("a", 0), share("b", 1, gib=8)], DIFFERENT),
        (HAMI, [share("a", 0), share("b", 1, percent=40)], DIFFERENT),
        (HAMI, [share("a", 0), share("b", 0, gib=8)], DIFFERENT),
        # Admin access and a card without a limit shift the indexes.
        (HAMI, [share("a", 0), share("a", 1, gib=8), admin_share(2)], DIFFERENT),
        (HAMI, [share("a", 0), share("a", 1, gib=8), prepared_share(2, request="b")], DIFFERENT),
        (
            HAMI,
            [simulated_share(0, limit(30, 16)), simulated_share(1, limit(30, 8), request="b")],
            DIFFERENT,
        ),
        (
            HAMI,
            [share("a", 0), prepared_share(1, limit(30, 8), pci_bus_id="", request="a")],
            "no PCI bus id of gpu-1",
        ),
        (MPS, [share("a", 0), share("b", 0, gib=8)], "found different limits"),
        (MPS, [share("a", 0), share("a", 1)], "found 2 cards, expected one"),
        # The index of another request's card has no limit.
        (MPS, [share("a", 0), share("b", 1)], "found 2 cards"),
        (MPS, [share("a", 0), prepared_share(1, request="b")], "found 2 cards"),
        (MPS, [share("a", 0), admin_share(1)], "found 2 cards"),
    ],
)
def test_limits_that_the_enforcer_cannot_express_are_refused(
    by: Enforcer, shares: Sequence[PreparedShare], text: str
) -> None:
    with pytest.raises(ClaimError, match=f"claim team-a/a: .*{text}"):
        by.needs(prepared_claim(*shares))


def test_requests_with_equal_limits_may_be_on_any_card() -> None:
    assert HAMI.needs(prepared_claim(share("a", 1), share("b", 0), admin_share(2))).files


def test_client_gets_its_limits_and_the_daemons_pipes() -> None:
    assert edits(MPS, ONE) == Edits(
        env={
            "TF_ISOLATION_MODE": "soft",
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=16384M",
        },
        mounts=(
            Mount(host_path="/run/mps/pipe", container_path="/tmp/nvidia-mps", read_only=False),
            Mount(host_path="/run/mps/shm", container_path="/dev/shm", read_only=False),
        ),
    )


def percents_and_gib(env: Mapping[str, str]) -> dict[str, tuple[int, float]]:
    """Return the limits by card as Tensor Fusion's limiter reads them."""
    memory = json.loads(env["TENSOR_FUSION_CUDA_MEM_LIMIT"])
    percents = json.loads(env["TENSOR_FUSION_CUDA_UP_LIMIT"])
    return {uuid: (percents[uuid], memory[uuid] / GIB) for uuid in memory | percents}


@pytest.mark.parametrize(
    ("shares", "percent", "mib", "by_card"),
    [
        # Every request names all cards, and its own smallest limits.
        (
            [
                prepared_share(1, limit(20, 8), request="b", consumed=SMALL),
                share("a", 0, percent=50),
                share("a", 2, percent=40, gib=32),
            ],
            "40",
            "16384",
            {"GPU-0": (50, 16), "GPU-1": (20, 8), "GPU-2": (40, 32)},
        ),
        # Of several equal requests, each has the smallest limits of all.
        (
            [
                share("a", 0, percent=17),
                share("b", 1, percent=77, gib=8),
                prepared_share(2, limit(5, 1), request="other", consumed=SMALL),
            ],
            "17",
            "8192",
            {"GPU-0": (17, 16), "GPU-1": (77, 8), "GPU-2": (5, 1)},
        ),
        # Equal requests on one card keep the limit of one, and each its own limits.
        ([share("a", 0, gib=8), share("b", 0, gib=8)], "30", "8192", {"GPU-0": (30, 8)}),
        ([share("a", 0, gib=8), share("b", 0, percent=50)], "30", "8192", {"GPU-0": (30, 8)}),
        ([share("b", 0, gib=8), share("a", 0, percent=50)], "30", "8192", {"GPU-0": (50, 16)}),
        # Shares of one request on one card add up to at most the whole card.
        (
            [share("a", 0, percent=60), share("a", 0, percent=60)],
            "100",
            "32768",
            {"GPU-0": (100, 32)},
        ),
    ],
)
def test_tensor_fusion_limits_a_request_by_the_smallest_of_its_kind_and_each_card_by_its_own(
    shares: Sequence[PreparedShare],
    percent: str,
    mib: str,
    by_card: dict[str, tuple[int, float]],
) -> None:
    env = edits(TENSOR_FUSION, prepared_claim(*shares), "a").env

    assert (env["TF_CUDA_SM_PERCENT_LIMIT"], env["TF_GPU_MEMORY_LIMIT"]) == (percent, mib)
    assert percents_and_gib(env) == by_card


@pytest.mark.parametrize(
    ("address", "host"),
    [("192.0.2.7:8000", "192.0.2.7"), ("[2001:db8::7]:8000", "2001:db8::7"), ("", "")],
)
def test_limiter_gets_its_pod_and_the_address_of_the_hypervisor(address: str, host: str) -> None:
    settings = testing.enforcer_settings(
        "tensor-fusion",
        tensor_fusion_root="/run/tensor-fusion",
        hypervisor_address=address,
        hypervisor_sockets="",
        kubelet_root="/var/lib/kubelet",
    )

    env = edits(TensorFusion.from_settings(settings), ONE).env

    expected = {"HYPERVISOR_IP": host, "HYPERVISOR_PORT": "8000"} if host else {}
    assert variables_with_prefix(env, "HYPERVISOR_") == expected
    assert variables_with_prefix(env, "POD_") == {
        "POD_NAMESPACE": "team-a",
        "POD_NAME": "trainer-0",
    }


def test_claim_without_a_pod_has_a_folder_of_its_own() -> None:
    orphan = prepared_claim(*ONE.shares, pods=())
    folder = "/run/tensor-fusion/shm/team-a/uid-a"

    assert edits(TENSOR_FUSION, orphan).mounts[1].host_path == folder
    assert TENSOR_FUSION.needs(orphan).folders == (Folder(path=folder, mode=0o755),)
    assert "POD_NAME" not in edits(TENSOR_FUSION, orphan).env


def test_nvidia_limits_each_container_by_a_hook_before_it_starts() -> None:
    claim = prepared_claim(
        prepared_share(0, limit(30, 16)),
        prepared_share(1, limit(30, 8)),
        prepared_share(1, limit(30, 4), request="small"),
        prepared_share(2, request="small"),
        enforcer="nvidia",
    )

    uuids = [share.gpu_uuid for share in claim.shares]
    found = [edits(Nvidia(), claim, request) for request in ("gpu", "small")]

    assert [each.env for each in found] == [{"TF_ISOLATION_MODE": "soft"}] * 2
    assert [hook.as_cdi() for each in found for hook in each.hooks] == [
        {
            "hookName": "createRuntime",
            "path": "/bin/sh",
            "args": [
                *("sh", "/run/tensor-fusion/nvidia/hook.sh"),
                *("/run/tensor-fusion/nvidia/memory-limits", claim.pods[0].uid, wanted),
            ],
            "timeout": 15,
        }
        for wanted in (
            f"{uuids[0]}={16 * GIB},{uuids[1]}={12 * GIB}",
            f"{uuids[1]}={12 * GIB}",
        )
    ]
    spec = cdi.spec(claim, Nvidia())
    assert spec is not None
    assert spec["cdiVersion"] == "0.5.0"
    cdi_rules.check(spec)
    needs = Nvidia().needs(claim)
    assert needs.sockets == ("/run/tensor-fusion/nvidia/memory-limits/socket",)
    assert [each.path for each in needs.texts] == ["/run/tensor-fusion/nvidia/hook.sh"]


def test_nvidia_refuses_a_claim_of_several_pods() -> None:
    pods = tuple(PodRef(namespace="team-a", name=name, uid=name) for name in "ab")
    claim = replace(ONE, enforcer="nvidia", pods=pods)

    with pytest.raises(ClaimError, match="found 2 pods, expected one: enforcer nvidia limits the"):
        Nvidia().needs(claim)
