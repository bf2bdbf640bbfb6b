"""Claims that one container of a pod uses together."""

from typing import Any

import pytest

from tensorfusion_dra.core.admission import pod_containers

Json = dict[str, Any]

A, B, MADE = (
    {"name": "a", "resourceClaimName": "claim-a"},
    {"name": "b", "resourceClaimName": "claim-b"},
    {"name": "made", "resourceClaimTemplateName": "template"},
)


def container_with_claims(*claims: str, request: str = "") -> Json:
    extra = {"request": request} if request else {}
    return {"name": "c", "resources": {"claims": [{"name": name, **extra} for name in claims]}}


def pod_with_claims(*containers: Json, init: tuple[Json, ...] = ()) -> Json:
    return {
        "spec": {
            "resourceClaims": [A, B, MADE],
            "initContainers": list(init),
            "containers": list(containers),
        },
        "status": {
            "resourceClaimStatuses": [
                {"name": "made", "resourceClaimName": "train-made-x7k2p"},
                {"name": "gone"},
            ]
        },
    }


@pytest.mark.parametrize(
    ("found", "together"),
    [
        (pod_with_claims(container_with_claims("a"), container_with_claims("b")), set()),
        (pod_with_claims(container_with_claims("a", "b")), {"claim-b"}),
        (
            pod_with_claims(
                container_with_claims("a", request="x"),
                container_with_claims("b", "a", request="y"),
            ),
            {"claim-b"},
        ),
        (pod_with_claims(container_with_claims("a", "made")), {"train-made-x7k2p"}),
        (
            pod_with_claims(container_with_claims("a", "b"), container_with_claims("a", "made")),
            {"claim-b", "train-made-x7k2p"},
        ),
        (
            pod_with_claims(container_with_claims("a"), init=(container_with_claims("a", "b"),)),
            {"claim-b"},
        ),
        (pod_with_claims(container_with_claims("b", "made")), set()),
        (pod_with_claims(container_with_claims("a", "a")), set()),
        (pod_with_claims(container_with_claims("a", "unknown")), set()),
        ({}, set()),
        ({"spec": {"containers": [7], "resourceClaims": [None, {"name": "a"}]}}, set()),
    ],
)
def test_claims_that_share_a_container_with_one_claim(found: Json, together: set[str]) -> None:
    assert pod_containers.claims_sharing_a_container(found, "claim-a") == together


def container(name: str, *, request: str = "", claim: str = "a", **more: Any) -> Json:
    return {**container_with_claims(claim, request=request), "name": name, **more}


SIDECAR: Json = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("found", "at_once"),
    [
        (pod_with_claims(container("x"), container("y")), ("x", "y")),
        (pod_with_claims(container("x"), container("y", claim="b")), ()),
        (pod_with_claims(container("x", request="r"), container("y", request="s")), ()),
        (pod_with_claims(container("x", request="r"), container("y", request="r")), ("x", "y")),
        (pod_with_claims(container("x", request="r"), container("y")), ("x", "y")),
        (pod_with_claims(container("x"), init=(container("i"), container("j"))), ()),
        (pod_with_claims(container("x"), init=(container("i", **SIDECAR),)), ("i", "x")),
        (pod_with_claims(container_with_claims("a", "a")), ()),
        ({}, ()),
    ],
)
def test_containers_that_use_one_request_of_a_claim_at_the_same_time(
    found: Json, at_once: tuple[str, ...]
) -> None:
    assert pod_containers.containers_at_once(found, "claim-a") == at_once


@pytest.mark.parametrize("shared", ["shareProcessNamespace", "hostPID"])
def test_containers_of_one_pid_namespace_may_use_a_request_at_the_same_time(shared: str) -> None:
    found = pod_with_claims(container("x"), container("y"))
    found["spec"][shared] = True

    assert pod_containers.containers_at_once(found, "claim-a") == ()
