"""Containers whose limits would mix, or would not add up, and are refused.

Variables cannot hold the limits of two claims in one container. An enforcer that tells processes
apart by their PIDs cannot add up those of two containers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
    Setup,
    put_claim,
    share_result,
)

Node = Callable[[Enforcer], Setup]

IN_ONE = (("a", "b"),)
IN_TWO = (("a",), ("b",))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return lambda enforcer: Setup(tmp_path, enforcer=enforcer)


def put_claim_of_pod(
    setup: Setup, name: str, device: str, *, pod: str = "p", **more: Any
) -> ClaimRef:
    """Store a claim that is reserved for the pod, and return its reference."""
    return put_claim(setup, name, share_result(device, **more), pods=[pod])


def put_pod_with_containers(setup: Setup, *uses: tuple[str, ...], pod: str = "p") -> None:
    """Store a pod with one container for each of these groups of claims."""
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
def test_second_claim_of_a_container_is_refused_with_the_first_claim_and_a_remedy(
    node: Node, enforcer: Enforcer, device: str
) -> None:
    setup = node(enforcer)
    first = put_claim_of_pod(setup, "a", GPU_0)
    second = put_claim_of_pod(setup, "b", device, vram="8Gi")
    put_pod_with_containers(setup, *IN_ONE)

    setup.prepared(first)
    assert setup.refused(second) == (
        "claim default/b: found claim default/a in the same container, expected one claim for "
        "each container: its enforcer cannot tell two claims apart; ask for its GPUs in "
        "one claim with several requests"
    )
    assert setup.spec_of(second) is None


@pytest.mark.parametrize(
    ("enforcer", "uses", "asks", "reads_pods"),
    [
        (HAMI_CORE, IN_TWO, {}, True),
        (MPS, IN_TWO, {}, True),
        (TENSOR_FUSION, IN_ONE, {}, False),
        (HAMI_CORE, IN_ONE, {"tflops": "312", "vram": "80Gi"}, True),
    ],
    ids=["a container each", "a container each", "limits by card", "no limits"],
)
def test_claims_whose_limits_cannot_mix_are_prepared(
    node: Node,
    enforcer: Enforcer,
    uses: tuple[tuple[str, ...], ...],
    asks: dict[str, str],
    reads_pods: bool,
) -> None:
    setup = node(enforcer)
    put_pod_with_containers(setup, *uses)

    for name, device in (("a", GPU_0), ("b", GPU_1)):
        ref = put_claim_of_pod(setup, name, device, **asks)
        setup.annotate(ref, isolation="shared" if asks else "soft")  # so the pod's are not needed
        setup.prepared(ref)
    assert bool(setup.pods.pods_read) is reads_pods


def test_refusal_survives_a_restart_and_ends_with_the_first_claim(node: Node) -> None:
    setup = node(HAMI_CORE)
    first, second = put_claim_of_pod(setup, "a", GPU_0), put_claim_of_pod(setup, "b", GPU_1)
    put_pod_with_containers(setup, *IN_ONE)
    setup.prepare(first, second)

    after = setup.restarted()
    after.use(pods=setup.pods)

    assert "found claim default/a in the same container" in after.refused(second)
    after.prepared(first)
    after.unprepare(second, first)
    after.prepared(second)


def test_shared_claim_counts_in_the_containers_of_each_of_its_pods(node: Node) -> None:
    """The record of `a` names the pod for which it was prepared, but not later pods."""
    setup = node(HAMI_CORE)
    first = put_claim_of_pod(setup, "a", GPU_0, pod="earlier")
    put_pod_with_containers(setup, ("a",), pod="earlier")
    setup.prepare(first)
    second = put_claim_of_pod(setup, "b", GPU_1, pod="later")
    put_pod_with_containers(setup, *IN_ONE, pod="later")

    assert "found claim default/a in the same container" in setup.refused(second)


def test_pod_may_have_one_claim_if_pods_cannot_be_read(node: Node) -> None:
    setup = node(HAMI_CORE)
    setup.use(reads_pods=False)
    first, second = put_claim_of_pod(setup, "a", GPU_0), put_claim_of_pod(setup, "b", GPU_1)
    of_another_pod = put_claim_of_pod(setup, "c", GPU_1, pod="q")

    setup.prepared(first)
    setup.prepared(of_another_pod)
    error = setup.refused(second)
    assert "found claim default/a for the same pod, expected one claim for each pod" in error
    assert "(--read-pods)" in error


def test_containers_that_use_a_claim_at_once_are_refused_where_pids_tell_processes_apart(
    node: Node,
) -> None:
    setup = node(HAMI_CORE)
    ref = put_claim_of_pod(setup, "a", GPU_0)
    put_pod_with_containers(setup, ("a",), ("a",))

    error = setup.refused(ref)

    assert "found containers c0 and c1" in error
    assert "shareProcessNamespace: true" in error
    setup.use(enforcer=MPS)
    setup.prepared(ref)
