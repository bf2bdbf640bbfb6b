"""Asks whoever may say something about a claim's shares: claim, class and pods."""

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
    """Reads the terms of each allocation of a claim.

    Attributes:
        isolation: What holds where nobody says anything, not even the node's pool.
        pods: None if pods are not to be read, for lack of the right to.
    """

    isolation: Isolation
    pods: Pods | None

    def of_claim(
        self, claim: AllocatedClaim, *, node: Node, wait_seconds: float
    ) -> Sequence[SharePolicy]:
        """The terms of the claim's allocations, in their order.

        Args:
            claim: As allocated.
            node: Tells what its pool sets for shares that name no level and no isolation.
            wait_seconds: For each pod that has to be read.

        Raises:
            ClaimError: Somebody's parameters or annotations are malformed.
            RetryableError: A pod cannot be read now.
        """
        said = share_policy.annotated(claim)
        if said is None:
            said = share_policy.of_pods(claim, self._annotations(claim, wait_seconds))
        defaults = SharePolicy(
            isolation=node.isolation or self.isolation,
            qos=Qos(node.qos),
            tflops_limit=None,
            vram_limit=None,
            limiter=True,
        )
        return [share_policy.of_share(claim, each, said, defaults) for each in claim.allocations]

    def _annotations(
        self, claim: AllocatedClaim, wait_seconds: float
    ) -> Mapping[str, Mapping[str, str]]:
        """By pod; the webhook copies them to the claim, so this is for clusters without it."""
        if self.pods is None:
            return {}
        if len(claim.pods) > 1:
            log.info(
                "shared_claim_uses_smallest_limits", claim=str(claim.ref), pods=len(claim.pods)
            )
        return {
            str(pod): self.pods.annotations(pod, wait_seconds=wait_seconds) for pod in claim.pods
        }
