"""Policies of a claim's shares, merged from the claim, its DeviceClass, its pods and the node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.driver.ports.cluster import Pods

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePolicyReader:
    """Reader of the policy of each share of a claim.

    Attributes:
        isolation: Default for shares whose isolation no source sets, not even the node's pool.
        pods: None if the driver has no permission to read pods.
    """

    isolation: Isolation
    pods: Pods | None

    def of_claim(
        self, claim: AllocatedClaim, *, node: Node, wait_seconds: float
    ) -> Sequence[SharePolicy]:
        """Return the policies of the claim's allocations, in the same order.

        Args:
            claim: As allocated.
            node: Its pool sets the level of service and the isolation of shares that name none.
            wait_seconds: Timeout for each pod that has to be read.

        Raises:
            ClaimError: The parameters or annotations of the claim, its class or a pod are
                malformed.
            RetryableError: A pod cannot be read now.
        """
        annotated = share_policy.annotated(claim)
        if annotated is None:
            annotated = share_policy.of_pods(claim, self._annotations(claim, wait_seconds))
        defaults = SharePolicy(
            isolation=node.isolation or self.isolation,
            qos=Qos(node.qos),
            tflops_limit=None,
            vram_limit=None,
            limiter=True,
        )
        return [
            share_policy.of_share(claim, allocation, annotated, defaults)
            for allocation in claim.allocations
        ]

    def _annotations(
        self, claim: AllocatedClaim, wait_seconds: float
    ) -> Mapping[str, Mapping[str, str]]:
        """Return the annotations of the claim's pods, by pod.

        With the webhook they are in the claim already, so pods are read only without it.
        """
        if self.pods is None:
            return {}
        if len(claim.pods) > 1:
            log.info(
                "shared_claim_uses_smallest_limits", claim=str(claim.ref), pods=len(claim.pods)
            )
        return {
            str(pod): self.pods.annotations(pod, wait_seconds=wait_seconds) for pod in claim.pods
        }
