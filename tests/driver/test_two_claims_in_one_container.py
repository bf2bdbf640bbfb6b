"""Limits by variables cannot tell two claims of one container apart, so the second is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.outcomes import Failure
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
    Setup,
    error_of,
    share,
)
from tests.support.stored_claims import stored_claim

Node = Callable[[Enforcer], Setup]

IN_ONE = (("a", "b"),)
IN_TWO = (("a",), ("b",))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    opened: list[Setup] = []

    def made(enforcer: Enforcer) -> Setup:
        opened.append(Setup(tmp_path, enforcer=enforcer))
        return opened[-1]

    yield made
    for setup in opened:
        setup.ledger.close()


def of_pod(setup: Setup, name: str, device: str, *, pod: str = "p", **more: Any) -> ClaimRef:
    """A claim that is reserved for the pod."""
    claim = stored_claim(name, share(device, **more))
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"}]
    return setup.claims.put(claim)


def with_containers(setup: Setup, *uses: tuple[str, ...], pod: str = "p") -> None:
    """The pod has a container for each of these groups of claims."""
    names = sorted({name for group in uses for name in group})
    setup.pods.documents[f"default/{pod}"] = {
        "spec": {
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
            "containers": [
                {"name": f"c{index}", "resources": {"claims": [{"name": n} for n in group]}}
                for index, group in enumerate(uses)
            ],
        }
    }


@pytest.mark.parametrize("enforcer", [HAMI_CORE, MPS])
@pytest.mark.parametrize("device", [GPU_0, GPU_1], ids=["one card", "two cards"])
def test_the_second_claim_of_a_container_is_refused_with_the_first_and_the_cure(
    node: Node, enforcer: Enforcer, device: str
) -> None:
    setup = node(enforcer)
    first, second = of_pod(setup, "a", GPU_0), of_pod(setup, "b", device, vram="8Gi")
    with_containers(setup, *IN_ONE)

    outcomes = setup.prepare(first, second)

    assert isinstance(outcomes[first.uid], PreparedClaim)
    assert error_of(outcomes[second.uid]) == (
        "claim default/b: found claim default/a in the same container, expected one claim for "
        "each container: limits by variables cannot tell two claims apart; ask for its GPUs in "
        "one claim with several requests"
    )
    assert setup.spec_of(second) is None


@pytest.mark.parametrize("enforcer", [HAMI_CORE, MPS])
def test_each_container_may_have_a_claim_of_its_own(node: Node, enforcer: Enforcer) -> None:
    setup = node(enforcer)
    refs = of_pod(setup, "a", GPU_0), of_pod(setup, "b", GPU_1)
    with_containers(setup, *IN_TWO)

    outcomes = setup.prepare(*refs)

    assert all(isinstance(outcome, PreparedClaim) for outcome in outcomes.values())


def test_limits_that_the_hypervisor_tells_by_card_need_no_look_at_the_pod(node: Node) -> None:
    setup = node(TENSOR_FUSION)
    refs = of_pod(setup, "a", GPU_0), of_pod(setup, "b", GPU_1)
    with_containers(setup, *IN_ONE)

    outcomes = setup.prepare(*refs)

    assert all(isinstance(outcome, PreparedClaim) for outcome in outcomes.values())
    assert setup.pods.found == []


def test_a_card_without_limits_is_counted_by_the_container_as_well(node: Node) -> None:
    setup = node(MPS)
    limited = of_pod(setup, "a", GPU_0)
    whole = stored_claim("b", share(GPU_1, tflops="312", vram="80Gi"))
    whole["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-of-p"}]
    whole["metadata"]["annotations"] = {"tensor-fusion.ai/isolation": "shared"}
    second = setup.claims.put(whole)
    with_containers(setup, *IN_ONE)

    assert "found claim default/a in the same container" in error_of(
        setup.prepare(limited, second)[second.uid]
    )


def test_claims_without_limits_may_be_together(node: Node) -> None:
    setup = node(HAMI_CORE)
    refs = []
    for name, device in (("a", GPU_0), ("b", GPU_1)):
        claim = stored_claim(name, share(device, tflops="312", vram="80Gi"))
        claim["metadata"]["annotations"] = {"tensor-fusion.ai/isolation": "shared"}
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-of-p"}]
        refs.append(setup.claims.put(claim))
    with_containers(setup, *IN_ONE)

    outcomes = setup.prepare(*refs)

    assert all(isinstance(outcome, PreparedClaim) for outcome in outcomes.values())


def test_the_refusal_survives_a_restart_and_ends_with_the_first_claim(node: Node) -> None:
    setup = node(HAMI_CORE)
    first, second = of_pod(setup, "a", GPU_0), of_pod(setup, "b", GPU_1)
    with_containers(setup, *IN_ONE)
    setup.prepare(first, second)

    later = setup.restarted()
    later.pods = setup.pods
    later.preparer = later.with_claims(later.claims)
    refused = later.prepare(second)[second.uid]
    repeated = later.prepare(first)[first.uid]
    later.unprepare(second)
    later.unprepare(first)
    exclusive = later.prepare(second)[second.uid]
    later.ledger.close()

    assert isinstance(refused, Failure)
    assert isinstance(repeated, PreparedClaim)
    assert isinstance(exclusive, PreparedClaim)


def test_two_claims_that_an_older_release_prepared_stay_as_they_are(node: Node) -> None:
    setup = node(HAMI_CORE)
    refs = of_pod(setup, "a", GPU_0), of_pod(setup, "b", GPU_1)
    with_containers(setup, *IN_TWO)
    setup.prepare(*refs)
    with_containers(setup, *IN_ONE)

    later = setup.restarted()
    later.pods = setup.pods
    later.preparer = later.with_claims(later.claims)
    outcomes = later.prepare(*refs)
    later.ledger.close()

    assert all(isinstance(outcome, PreparedClaim) for outcome in outcomes.values())


def test_a_claim_of_several_pods_counts_in_the_containers_of_each(node: Node) -> None:
    """The record of `a` names the pod for which it was prepared, and not those that came later."""
    setup = node(HAMI_CORE)
    first = of_pod(setup, "a", GPU_0, pod="earlier")
    with_containers(setup, ("a",), pod="earlier")
    setup.prepare(first)
    second = of_pod(setup, "b", GPU_1, pod="later")
    with_containers(setup, *IN_ONE, pod="later")

    assert "found claim default/a in the same container" in error_of(
        setup.prepare(second)[second.uid]
    )


def test_without_the_right_to_read_pods_a_pod_has_one_claim(node: Node) -> None:
    setup = node(HAMI_CORE)
    setup.reads_pods = False
    setup.preparer = setup.with_claims(setup.claims)
    first, second = of_pod(setup, "a", GPU_0), of_pod(setup, "b", GPU_1)
    of_another = of_pod(setup, "c", GPU_1, pod="q")

    outcomes = setup.prepare(first, second, of_another)

    assert isinstance(outcomes[of_another.uid], PreparedClaim)
    assert "found claim default/a for the same pod, expected one claim for each pod" in error_of(
        outcomes[second.uid]
    )
    assert "(--read-pods)" in error_of(outcomes[second.uid])
