"""Enforcer mps: additions to its clients, and claims that it cannot limit."""

from typing import Final

import pytest

from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, Needs
from tensorfusion_dra.core.claims.enforcers.mps import Mps
from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.cdi_rules import variables_with_prefix

MPS: Final = Mps(pipes="/run/mps/pipe", shm="/run/mps/shm")
SEVERAL: Final = Mps(several_cards=True)
ONE: Final = prepared_claim(prepared_share(0, limit(30, 16)))


def edits(of_claim: PreparedClaim, request: str = "gpu") -> Edits:
    return MPS.edits(of_claim, [s for s in of_claim.shares if s.request == request])


def test_client_gets_its_limits_and_the_daemons_pipes() -> None:
    assert edits(ONE) == Edits(
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


def test_claim_needs_a_listening_daemon_because_a_client_without_one_has_no_limits() -> None:
    assert MPS.needs(ONE) == Needs(files=("/run/mps/shm",), sockets=("/run/mps/pipe/control",))


def test_several_cards_are_numbered_along_the_pci_bus_and_share_the_smallest_percentage() -> None:
    two = prepared_claim(prepared_share(1, limit(20, 8)), prepared_share(0, limit(50, 16)))

    found = variables_with_prefix(edits(two).env, "CUDA_MPS_")

    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=16384M,1=8192M"
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"


def test_several_cards_are_refused_unless_an_administrator_allows_them() -> None:
    two = prepared_claim(prepared_share(0, limit(30, 16)), prepared_share(1, limit(30, 16)))

    with pytest.raises(ClaimError, match="claim team-a/a: found 2 cards, expected one"):
        MPS.needs(two)

    assert SEVERAL.needs(two).files


@pytest.mark.parametrize(
    "shares",
    [
        (
            prepared_share(0, limit(30, 16), request="a"),
            prepared_share(1, limit(30, 16), request="b"),
        ),
        (prepared_share(0, limit(30, 16)), prepared_share(1, request="whole")),
        (prepared_share(0, limit(30, 16)), admin_share(1)),
    ],
    ids=["limited", "unlimited", "for admins"],
)
def test_card_of_another_request_is_refused_because_its_index_has_no_limit(
    shares: tuple[PreparedShare, ...],
) -> None:
    with pytest.raises(ClaimError, match="found 2 cards"):
        SEVERAL.needs(prepared_claim(*shares))


def test_different_limits_of_one_card_in_two_requests_are_refused() -> None:
    two = prepared_claim(
        prepared_share(0, limit(30, 16), request="a"), prepared_share(0, limit(30, 8), request="b")
    )

    with pytest.raises(ClaimError, match="found different limits"):
        MPS.needs(two)


@pytest.mark.parametrize("isolation", [Isolation.SHARED, Isolation.HARD])
def test_share_without_a_limit_gets_only_its_isolation(isolation: Isolation) -> None:
    shared = prepared_claim(
        prepared_share(0, isolation=isolation), prepared_share(1, isolation=isolation)
    )

    assert edits(shared) == Edits(env={"TF_ISOLATION_MODE": isolation.value})
    assert MPS.needs(shared) == Needs()


def test_hard_and_soft_isolation_have_the_same_fixed_limits() -> None:
    hard = prepared_claim(prepared_share(0, limit(30, 16), isolation=Isolation.HARD))

    assert variables_with_prefix(edits(hard).env, "CUDA_") == variables_with_prefix(
        edits(ONE).env, "CUDA_"
    )
    assert MPS.fixed == set(Isolation)


def test_simulated_card_has_limits_but_nothing_of_the_host() -> None:
    absent = prepared_claim(simulated_share(0, limit(30, 16)))

    assert edits(absent) == Edits(env=edits(ONE).env)
    assert MPS.needs(absent) == Needs()


def test_sign_is_the_daemons_socket() -> None:
    claim = prepared_claim(prepared_share(0, limit(30, 16)))

    assert Mps().evidence_paths(claim) == EvidencePaths(socket="/run/nvidia/mps/pipe/control")
    assert (
        Mps().evidence_paths(prepared_claim(simulated_share(0, limit(30, 16)))) == EvidencePaths()
    )
    assert Mps().evidence_paths(prepared_claim(prepared_share(0))) == EvidencePaths()
