"""Enforcer tensor-fusion: additions to containers in each isolation mode."""

import json
from typing import Final

import pytest

from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, Folder, Needs, TextFile
from tensorfusion_dra.core.claims.enforcers.limiters import Way
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)

TENSOR_FUSION: Final = TensorFusion()
LIMITER: Final = "/run/tensor-fusion/libcuda_limiter.so"
PRELOAD: Final = "/run/tensor-fusion/preload/ld.so.preload"
SHM: Final = "/run/tensor-fusion/shm/team-a/trainer-0"
SMALL: Final = {"tflops": quantity.parse("10"), "vram": quantity.parse("1Gi")}
SOFT: Final = prepared_claim(prepared_share(0, limit(30, 16)))
HARD: Final = prepared_claim(prepared_share(0, limit(30, 16), isolation=Isolation.HARD))


def edits(
    of_claim: PreparedClaim, request: str = "gpu", *, by: TensorFusion = TENSOR_FUSION
) -> Edits:
    return by.edits(of_claim, [s for s in of_claim.shares if s.request == request])


def test_a_variable_may_load_the_limiter_instead_of_a_file() -> None:
    by = TensorFusion(preload=Way.ENV)

    found = edits(SOFT, by=by)

    assert found.env["LD_PRELOAD"] == "/tensor-fusion-limiter/libcuda_limiter.so"
    assert "/etc/ld.so.preload" not in {mount.container_path for mount in found.mounts}
    assert by.needs(SOFT).texts == ()


def test_soft_isolation_needs_the_limiter_and_a_folder_for_the_pod() -> None:
    assert TENSOR_FUSION.needs(SOFT) == Needs(
        files=(LIMITER,),
        folders=(Folder(path=SHM, mode=0o755),),
        texts=(TextFile(path=PRELOAD, text="/tensor-fusion-limiter/libcuda_limiter.so\n"),),
    )


@pytest.mark.parametrize("isolation", list(Isolation))
def test_share_without_a_limit_gets_only_its_isolation(isolation: Isolation) -> None:
    unlimited = prepared_claim(prepared_share(0, isolation=isolation))

    assert edits(unlimited) == Edits(env={"TF_ISOLATION_MODE": isolation.value})
    assert TENSOR_FUSION.needs(unlimited) == Needs()


def test_every_request_names_all_cards_and_its_own_smallest_limits() -> None:
    both = prepared_claim(
        prepared_share(1, limit(20, 8), request="a", consumed=SMALL),
        prepared_share(0, limit(50, 16), request="b"),
        prepared_share(2, limit(40, 32), request="b"),
    )

    env = edits(both, "b").env

    assert env["TF_CUDA_SM_PERCENT_LIMIT"] == "40"
    assert env["TF_GPU_MEMORY_LIMIT"] == "16384"
    assert json.loads(env["TENSOR_FUSION_CUDA_UP_LIMIT"]) == {"GPU-0": 50, "GPU-1": 20, "GPU-2": 40}
    assert json.loads(env["TENSOR_FUSION_CUDA_MEM_LIMIT"]) == {
        "GPU-0": 16 * GIB,
        "GPU-1": 8 * GIB,
        "GPU-2": 32 * GIB,
    }


def test_each_of_several_equal_requests_has_their_smallest_limits() -> None:
    cards = prepared_claim(
        prepared_share(0, limit(17, 16), request="gpu", isolation=Isolation.HARD),
        prepared_share(1, limit(77, 8), request="gpu-2", isolation=Isolation.HARD),
        prepared_share(2, limit(5, 1), request="other", isolation=Isolation.HARD, consumed=SMALL),
    )

    for request in ("gpu", "gpu-2"):
        env = edits(cards, request).env
        assert env["TF_CUDA_SM_PERCENT_LIMIT"] == "17"
        assert env["TF_GPU_MEMORY_LIMIT"] == "8192"


def test_equal_requests_on_one_card_keep_the_limit_of_one() -> None:
    both = prepared_claim(
        prepared_share(0, limit(30, 8), request="a", share_id="1"),
        prepared_share(0, limit(30, 8), request="b", share_id="2"),
    )

    assert edits(both, "a").env["TF_CUDA_SM_PERCENT_LIMIT"] == "30"


def test_card_of_two_requests_has_in_each_the_limits_of_that_request() -> None:
    both = prepared_claim(
        prepared_share(0, limit(20, 8), request="a"), prepared_share(0, limit(50, 16), request="b")
    )

    of_a = json.loads(edits(both, "a").env["TENSOR_FUSION_CUDA_MEM_LIMIT"])
    of_b = json.loads(edits(both, "b").env["TENSOR_FUSION_CUDA_MEM_LIMIT"])

    assert (of_a, of_b) == ({"GPU-0": 8 * GIB}, {"GPU-0": 16 * GIB})


def test_shares_of_one_card_add_up_to_at_most_the_whole_card() -> None:
    both = prepared_claim(
        prepared_share(0, limit(60, 8), share_id="a"), prepared_share(0, limit(60, 8), share_id="b")
    )

    assert edits(both).env["TF_CUDA_SM_PERCENT_LIMIT"] == "100"
    assert edits(both).env["TF_GPU_MEMORY_LIMIT"] == "16384"


def test_admin_access_needs_nothing() -> None:
    assert TENSOR_FUSION.needs(prepared_claim(admin_share())) == Needs()


def test_limiter_gets_its_pod_and_the_address_of_the_hypervisor() -> None:
    by = TensorFusion(hypervisor_ip="192.0.2.7", hypervisor_port=8000)

    env = edits(SOFT, by=by).env

    assert (env["POD_NAMESPACE"], env["POD_NAME"]) == ("team-a", "trainer-0")
    assert (env["HYPERVISOR_IP"], env["HYPERVISOR_PORT"]) == ("192.0.2.7", "8000")
    assert "HYPERVISOR_IP" not in edits(SOFT).env


def test_claim_without_a_pod_has_a_folder_of_its_own() -> None:
    orphan = prepared_claim(*SOFT.shares, pods=())
    folder = "/run/tensor-fusion/shm/team-a/uid-a"

    assert edits(orphan).mounts[1].host_path == folder
    assert TENSOR_FUSION.needs(orphan).folders == (Folder(path=folder, mode=0o755),)
    assert "POD_NAME" not in edits(orphan).env


def test_simulated_card_has_limits_but_nothing_of_the_host() -> None:
    absent = prepared_claim(simulated_share(0, limit(30, 16)))

    found = edits(absent)

    assert found.mounts == ()
    assert "LD_PRELOAD" not in found.env
    assert found.env["TF_GPU_MEMORY_LIMIT"] == "16384"
    assert TENSOR_FUSION.needs(absent) == Needs()


def test_sign_is_the_shared_memory_of_the_pod() -> None:
    assert TENSOR_FUSION.evidence_paths(SOFT) == EvidencePaths(
        files=(LIMITER,),
        shared_memory=f"{SHM}/shm",
        registered_folder=f"/run/tensor-fusion/shm/.tensorfusion-dra/{SOFT.pods[0].uid}",
    )
    assert TENSOR_FUSION.evidence_paths(HARD) == EvidencePaths()
    assert (
        TENSOR_FUSION.evidence_paths(prepared_claim(simulated_share(0, limit(30, 16))))
        == EvidencePaths()
    )
