"""A node on which nothing enforces limits: parts of cards wait, and whole cards are prepared."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims.enforcement import presence, verdicts
from tensorfusion_dra.core.claims.enforcement.signs import Signs
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.sharing import Isolation
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
    Setup,
    error_of,
    put_annotated_claim,
    put_claim,
    share_result,
    use_real_cards,
)

MISSING: Final = {
    "/run/tensor-fusion/libcuda_limiter.so",
    "/libvgpu.so.1",
    "/run/nvidia/mps/pipe/control",
}
ENFORCERS: Final = (TENSOR_FUSION, HAMI_CORE, MPS)
WHOLE: Final = {"tflops": "312", "vram": "80Gi"}
PART: Final = {"tflops": "100", "vram": "16Gi"}


@pytest.fixture
def bare(setup: Setup) -> Callable[[Enforcer], Setup]:
    """Make a node with real cards on which the enforcer's files and sockets are missing."""

    def made(enforcer: Enforcer = TENSOR_FUSION) -> Setup:
        use_real_cards(setup)
        setup.enforcer = enforcer
        setup.host_files.absent = {*MISSING}
        setup.preparer = setup.with_claims(setup.claims)
        return setup

    return made


def exclusive(device: str) -> dict[str, Any]:
    """Return an allocation of the device that nothing can share."""
    result: dict[str, Any] = share_result(device)
    del result["shareID"], result["consumedCapacity"]
    return result


@pytest.mark.parametrize("enforcer", ENFORCERS, ids=lambda each: each.name)
def test_part_of_a_card_waits_and_the_error_names_enforcer_and_cures(
    bare: Callable[[Enforcer], Setup], enforcer: Enforcer
) -> None:
    node = bare(enforcer)
    ref = put_claim(node, "a", share_result())

    text = error_of(node.prepare(ref)[ref.uid])

    assert text.startswith("claim default/a: nothing on this node would enforce its limits: ")
    assert f"enforcer {enforcer.name}: " in text
    assert ": No such file or directory; " in text
    assert text.endswith(presence.cure(enforcer.name))
    assert (node.ledger.claims(), node.spec_of(ref)) == ([], None)


CLAIMS: Final[Mapping[str, tuple[list[dict[str, Any]], bool]]] = {
    "a whole card": ([share_result(GPU_0, **WHOLE)], True),
    "a card allocated exclusively": ([exclusive(GPU_0)], True),
    "two whole cards": ([share_result(GPU_0, **WHOLE), share_result(GPU_1, **WHOLE)], True),
    "a whole card, and admin access to another": (
        [share_result(GPU_0, **WHOLE), {**exclusive(GPU_1), "adminAccess": True}],
        True,
    ),
    "a whole card and a part of another": (
        [share_result(GPU_0, **WHOLE), share_result(GPU_1, **PART)],
        False,
    ),
    "both halves of a card": (
        [share_result(GPU_0, tflops="156", vram="40Gi") for _ in range(2)],
        False,
    ),
    "all memory": ([share_result(GPU_0, tflops="311", vram="80Gi")], False),
    "all compute": ([share_result(GPU_0, tflops="312", vram="81919Mi")], False),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_only_claims_for_nothing_but_whole_cards_are_prepared(
    bare: Callable[[Enforcer], Setup], case: str
) -> None:
    node = bare(TENSOR_FUSION)
    results, is_prepared = CLAIMS[case]
    ref = put_claim(node, "a", *results)

    outcome = node.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim) is is_prepared


@pytest.mark.parametrize("enforcer", ENFORCERS, ids=lambda each: each.name)
@pytest.mark.parametrize("mode", ["", "soft", "hard"])
def test_whole_card_is_prepared_in_isolation_shared(
    bare: Callable[[Enforcer], Setup], enforcer: Enforcer, mode: str
) -> None:
    if mode == "hard" and not enforcer.enforces_hard:
        return  # refused to tenants, and for administrators the limiter is in the image
    node = bare(enforcer)
    annotations = {"tensor-fusion.ai/isolation": mode} if mode else {}
    ref = put_annotated_claim(node, "a", annotations, **WHOLE)

    outcome = node.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim)
    (share,) = outcome.shares
    assert (share.limit, share.isolation) == (None, Isolation.SHARED)
    (found,) = verdicts.of_claim(outcome, Signs(read_at=0.0), is_new=False)
    assert (found.state, found.reason) == ("Enforced", "NoLimit")
    assert node.ledger.claims() == [outcome]
    assert "TF_ISOLATION_MODE=shared" in str(node.spec_of(ref))


def test_whole_card_stays_without_limit_once_the_enforcer_is_there(
    bare: Callable[[Enforcer], Setup],
) -> None:
    """Its container may be running; a repeated call gets the same answer."""
    node = bare(TENSOR_FUSION)
    ref = put_claim(node, "a", share_result(GPU_0, **WHOLE))
    first = node.prepare(ref)[ref.uid]

    node.host_files.absent = set()

    assert node.prepare(ref)[ref.uid] == first
