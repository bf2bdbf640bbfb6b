"""Enforcer hami-core: additions to its containers, and claims that it cannot limit."""

from typing import Final

import pytest

from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, Folder, Needs, TextFile
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.limiters import Way
from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import MIB
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.cdi_rules import variables_with_prefix

LIBRARY: Final = "/usr/local/vgpu/libvgpu.so.2.8.0"
HAMI: Final = HamiCore(library=LIBRARY)
PRELOAD: Final = "/run/tensor-fusion/hami-core/ld.so.preload"
CACHES: Final = "/run/tensor-fusion/hami-core/claims/uid-a"
ONE: Final = prepared_claim(prepared_share(0, limit(30, 16)))


def edits(of_claim: PreparedClaim, request: str = "gpu", *, by: HamiCore = HAMI) -> Edits:
    return by.edits(of_claim, [s for s in of_claim.shares if s.request == request])


def limits(found: Edits) -> dict[str, str]:
    return variables_with_prefix(found.env, "CUDA_DEVICE_MEMORY_LIMIT") | variables_with_prefix(
        found.env, "CUDA_DEVICE_SM_LIMIT"
    )


def test_card_is_limited_by_its_index_and_any_other_by_the_smallest_limit() -> None:
    assert limits(edits(ONE)) == {
        "CUDA_DEVICE_MEMORY_LIMIT": "16384m",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "16384m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_SM_LIMIT_0": "30",
    }


def test_indexes_follow_the_pci_bus_and_not_the_order_of_the_scheduler() -> None:
    late = prepared_share(0, limit(70, 4), pci_bus_id="0001:01:00.0")
    middle = prepared_share(1, limit(20, 8), pci_bus_id="0000:c1:00.0")
    early = prepared_share(2, limit(50, 16), pci_bus_id="0000:9:00.0")

    assert limits(edits(prepared_claim(late, middle, early))) == {
        "CUDA_DEVICE_MEMORY_LIMIT": "4096m",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "16384m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "8192m",
        "CUDA_DEVICE_MEMORY_LIMIT_2": "4096m",
        "CUDA_DEVICE_SM_LIMIT": "20",
        "CUDA_DEVICE_SM_LIMIT_0": "50",
        "CUDA_DEVICE_SM_LIMIT_1": "20",
        "CUDA_DEVICE_SM_LIMIT_2": "70",
    }


def test_shares_of_one_card_add_up_to_at_most_the_whole_card() -> None:
    both = prepared_claim(
        prepared_share(0, limit(60, 8), share_id="a"), prepared_share(0, limit(60, 8), share_id="b")
    )

    found = edits(both).env

    assert found["CUDA_DEVICE_MEMORY_LIMIT_0"] == "16384m"
    assert found["CUDA_DEVICE_SM_LIMIT_0"] == "100"
    assert "CUDA_DEVICE_MEMORY_LIMIT_1" not in found


@pytest.mark.parametrize(("size", "expected"), [(2 * MIB - 1, "1m"), (MIB - 1, "1m"), (MIB, "1m")])
def test_memory_is_rounded_down_but_never_to_0_which_means_unlimited(
    size: int, expected: str
) -> None:
    found = edits(prepared_claim(prepared_share(0, Limit(sm_percent=1, vram_bytes=size))))

    assert found.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == expected


def test_card_without_a_limit_gets_the_smallest_limit_of_the_other_cards() -> None:
    found = edits(prepared_claim(prepared_share(0), prepared_share(1, limit(30, 16))))

    assert found.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "16384m"


def test_variables_that_would_disable_the_limits_are_overridden() -> None:
    found = edits(ONE).env

    assert found["CUDA_DISABLE_CONTROL"] == ""
    assert found["CUDA_REDIRECT"] == ""
    assert found["GPU_CORE_UTILIZATION_POLICY"] == "force"
    assert found["CUDA_TASK_PRIORITY"] == "1"


def test_library_and_preload_file_are_mounted_where_hami_core_looks_for_them() -> None:
    found = edits(ONE)

    assert found.mounts == (
        Mount(host_path=LIBRARY, container_path="/usr/local/vgpu/libvgpu.so"),
        Mount(host_path=CACHES, container_path="/usr/local/vgpu/claims", read_only=False),
        Mount(host_path=CACHES, container_path="/tmp/vgpulock", read_only=False),
        Mount(host_path=PRELOAD, container_path="/etc/ld.so.preload"),
    )
    assert "LD_PRELOAD" not in found.env


def test_without_a_preload_file_a_variable_loads_the_library() -> None:
    by = HamiCore(library=LIBRARY, preload=Way.ENV)

    assert edits(ONE, by=by).env["LD_PRELOAD"] == "/usr/local/vgpu/libvgpu.so"
    assert "/etc/ld.so.preload" not in {m.container_path for m in edits(ONE, by=by).mounts}
    assert by.needs(ONE).texts == ()


def test_claim_needs_the_library_and_a_folder_of_its_own_that_every_user_may_write() -> None:
    folder = Folder(path=CACHES, mode=0o777)

    assert HAMI.needs(ONE) == Needs(
        files=(LIBRARY,),
        folders=(folder,),
        texts=(TextFile(path=PRELOAD, text="/usr/local/vgpu/libvgpu.so\n"),),
    )


def test_each_request_has_its_own_cache_file_with_a_stable_name() -> None:
    two = prepared_claim(
        prepared_share(0, limit(30, 16), request="a"), prepared_share(1, limit(30, 16), request="b")
    )

    caches = [
        edits(two, request).env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for request in ("a", "b", "a")
    ]

    names = ["a.cache", "b.cache", "a.cache"]
    assert caches == [f"/usr/local/vgpu/claims/{name}" for name in names]


def test_equal_limits_in_several_requests_are_accepted() -> None:
    two = prepared_claim(
        prepared_share(1, limit(30, 16), request="a"),
        prepared_share(0, limit(30, 16), request="b"),
        admin_share(2),
    )

    assert limits(edits(two, "a")) == limits(edits(two, "b"))
    assert HAMI.needs(two).files


@pytest.mark.parametrize(
    "shares",
    [
        (
            prepared_share(0, limit(30, 16), request="a"),
            prepared_share(1, limit(30, 8), request="b"),
        ),
        (
            prepared_share(0, limit(30, 16), request="a"),
            prepared_share(1, limit(40, 16), request="b"),
        ),
        (
            prepared_share(0, limit(30, 16), request="a"),
            prepared_share(0, limit(30, 8), request="b"),
        ),
        (prepared_share(0, limit(30, 16)), prepared_share(1, limit(30, 8)), admin_share(2)),
        (
            prepared_share(0, limit(30, 16)),
            prepared_share(1, limit(30, 8)),
            prepared_share(2, request="whole"),
        ),
        (
            simulated_share(0, limit(30, 16), request="a"),
            simulated_share(1, limit(30, 8), request="b"),
        ),
    ],
    ids=["memory", "compute", "one card", "admin shifts", "unlimited shifts", "simulated"],
)
def test_different_limits_in_a_claim_of_several_requests_are_refused(
    shares: tuple[PreparedShare, ...],
) -> None:
    with pytest.raises(ClaimError, match=r"claim team-a/a: found different limits .*16384Mi"):
        HAMI.needs(prepared_claim(*shares))


def test_different_limits_on_cards_in_an_unknown_order_are_refused() -> None:
    known, unknown = (
        prepared_share(0, limit(30, 16)),
        prepared_share(1, limit(30, 8), pci_bus_id=""),
    )

    with pytest.raises(ClaimError, match="no PCI bus id of gpu-1"):
        HAMI.needs(prepared_claim(known, unknown))


def test_equal_limits_on_cards_in_an_unknown_order_are_accepted() -> None:
    shares = [prepared_share(card, limit(30, 16), pci_bus_id="") for card in range(2)]

    assert limits(edits(prepared_claim(*shares)))["CUDA_DEVICE_MEMORY_LIMIT_1"] == "16384m"
    assert HAMI.needs(prepared_claim(*shares)).files


@pytest.mark.parametrize("isolation", [Isolation.SHARED, Isolation.HARD])
def test_share_without_a_limit_gets_only_its_isolation(isolation: Isolation) -> None:
    shared = prepared_claim(prepared_share(0, isolation=isolation))

    assert edits(shared) == Edits(env={"TF_ISOLATION_MODE": isolation.value})
    assert HAMI.needs(shared) == Needs()


def test_hard_and_soft_isolation_have_the_same_fixed_limits() -> None:
    hard = prepared_claim(prepared_share(0, limit(30, 16), isolation=Isolation.HARD))

    assert limits(edits(hard)) == limits(edits(ONE))
    assert edits(hard).mounts == edits(ONE).mounts
    assert HAMI.fixed == {Isolation.SOFT, Isolation.HARD, Isolation.SHARED}


def test_simulated_card_has_limits_but_nothing_of_the_host() -> None:
    there, absent = ONE, prepared_claim(simulated_share(0, limit(30, 16)))

    assert edits(absent) == Edits(env=edits(there).env)
    assert HAMI.needs(absent) == Needs()


def test_signs_are_in_the_claims_folder() -> None:
    claim = prepared_claim(prepared_share(0, limit(30, 16)))

    assert HAMI.evidence_paths(claim) == EvidencePaths(
        files=(LIBRARY,), caches={"gpu": "/run/tensor-fusion/hami-core/claims/uid-a/gpu.cache"}
    )
    assert HAMI.evidence_paths(prepared_claim(simulated_share(0, limit(30, 16)))) == EvidencePaths()
    assert HAMI.evidence_paths(prepared_claim(prepared_share(0))) == EvidencePaths()
