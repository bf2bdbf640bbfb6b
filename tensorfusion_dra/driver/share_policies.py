"""Policies of a claim's shares, merged from the claim, its DeviceClass, its pods and the node."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import structlog

from tensorfusion_dra.core.claims import pod_marks, share_policy
from tensorfusion_dra.core.claims.admit import ContainerNeighbours
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.enforcer import Pods
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.share_policy import ShareParameters, SharePolicy
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import pod_claims


class ClaimPods:
    """Reader of a claim's pods, which are read when they are first needed."""

    def __init__(self, pods: Pods | None, claim: AllocatedClaim, *, deadline: float) -> None:
        """Read nothing yet.

        Args:
            pods: None if the driver has no permission to read pods.
            claim: As allocated.
            deadline: On time.monotonic()'s clock.
        """
        self._pods = pods
        self._claim = claim
        self._deadline = deadline

    @property
    def can_be_read(self) -> bool:
        """False if the driver has no permission to read pods."""
        return self._pods is not None

    @cached_property
    def stored(self) -> Mapping[str, Mapping[str, Any]]:
        """The stored pods by namespace/name; pods that are gone or replaced are empty.

        Raises:
            RetryableError: A pod cannot be read now.
        """
        pods = self._pods
        if pods is None:
            return {}

        return {
            str(pod): pods.find(pod, wait_seconds=self._deadline - time.monotonic()) or {}
            for pod in self._claim.pods
        }


log = structlog.get_logger()


def of_claim(
    claim: AllocatedClaim, pods: ClaimPods, *, node: Node, default: Isolation
) -> Sequence[SharePolicy]:
    """Return the policies of the claim's allocations, in the same order.

    Args:
        claim: As allocated.
        pods: The claim's pods. They are read only if a value of some share is set neither by
            parameters nor by the claim's annotations.
        node: Its pool sets the level of service and the isolation of shares that name none.
        default: Isolation of shares for which no source sets one, not even the node's pool.

    Raises:
        ClaimError: The parameters or annotations of the claim, its class or a pod are malformed.
        RetryableError: A pod cannot be read now.
    """
    annotated = share_policy.annotated(claim)
    if annotated is None and share_policy.leaves_values_open(claim):
        # With the webhook they are in the claim already, so pods are read only without it.
        if pods.can_be_read and len(claim.pods) > 1:
            log.debug(
                "shared_claim_uses_smallest_limits", claim=str(claim.ref), pods=len(claim.pods)
            )
        annotations = {
            # Without those that this driver added: they are results and request nothing.
            name: {key: str(text) for key, text in pod_marks.original_annotations(stored).items()}
            for name, stored in pods.stored.items()
        }
        annotated = share_policy.of_pods(claim, annotations)
    defaults = SharePolicy(
        isolation=node.isolation or default,
        qos=Qos(node.qos),
        tflops_limit=None,
        vram_limit=None,
        limiter=True,
    )
    return [
        share_policy.of_share(claim, allocation, annotated or ShareParameters(), defaults)
        for allocation in claim.allocations
    ]


def neighbours(
    claim: AllocatedClaim,
    policies: Sequence[SharePolicy],
    pods: ClaimPods,
    *,
    enforcer: str,
    rules: LendingRules,
) -> ContainerNeighbours:
    """Return the claims that share a container with this claim, as its pods list them.

    Some enforcers cannot keep two claims of one container apart (core/kubernetes/pod_claims.py
    explains why), so admit() refuses the second one. The pods are read before the ledger's
    transaction, because the API server may be slow. None is read if the enforcer can tell the claim
    from others in a container.

    Example: container `train` uses the claims `a` and `b`, and the enforcer is HAMi-core. `a` is
    prepared. For `b` this returns `a`, and `b` is refused. If only the container `log` used `b`,
    this would return nothing, and both would be prepared.

    Args:
        claim: As allocated.
        policies: Of the claim's allocations.
        pods: The claim's pods.
        enforcer: Name of its enforcer.
        rules: Say in which isolations an enforcer mixes the limits of two claims, and whether it
            needs one PID namespace for the containers of a request.

    Raises:
        ClaimError: Several containers of a pod would have the whole limit each.
        RetryableError: A pod cannot be read now.
    """
    if not any(rules.mixes(enforcer, each.isolation) for each in policies):
        return ContainerNeighbours()
    if not pods.can_be_read:
        return ContainerNeighbours(is_known=False)
    found: set[str] = set()
    is_counted = rules.counts_by_pid(enforcer) and any(
        each.limiter and each.isolation is not Isolation.SHARED for each in policies
    )
    for stored in filter(None, pods.stored.values()):
        together = pod_claims.containers_at_once(stored, claim.ref.name)
        if is_counted and together:
            raise ClaimError(
                f"claim {claim.ref}: found containers {' and '.join(together)} that use it at "
                "the same time, expected one, or shareProcessNamespace: true in the pod: "
                "otherwise each would have the whole limit, because processes are told apart "
                "by their PIDs"
            )
        found |= pod_claims.claims_sharing_a_container(stored, claim.ref.name)
    return ContainerNeighbours(frozenset(found))
