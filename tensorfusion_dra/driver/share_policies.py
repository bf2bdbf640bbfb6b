"""Policies of a claim's shares, merged from the claim, its DeviceClass, its pods and the node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from tensorfusion_dra.core.claims import share_policy, workers
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.share_parameters import ShareParameters
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.driver.claim_pods import ClaimPods

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePolicyReader:
    """Reader of the policy of each share of a claim.

    Attributes:
        isolation: Default for shares whose isolation no source sets, not even the node's pool.
    """

    isolation: Isolation

    def of_claim(
        self, claim: AllocatedClaim, pods: ClaimPods, *, node: Node
    ) -> Sequence[SharePolicy]:
        """Return the policies of the claim's allocations, in the same order.

        Args:
            claim: As allocated.
            pods: The claim's pods. They are read only if a value of some share is set neither by
                parameters nor by the claim's annotations.
            node: Its pool sets the level of service and the isolation of shares that name none.

        Raises:
            ClaimError: The parameters or annotations of the claim, its class or a pod are
                malformed.
            RetryableError: A pod cannot be read now.
        """
        annotated = share_policy.annotated(claim)
        if annotated is None and share_policy.leaves_values_open(claim):
            annotated = share_policy.of_pods(claim, _annotations(claim, pods))
        defaults = SharePolicy(
            isolation=node.isolation or self.isolation,
            qos=Qos(node.qos),
            tflops_limit=None,
            vram_limit=None,
            limiter=True,
        )
        return [
            share_policy.of_share(claim, allocation, annotated or ShareParameters(), defaults)
            for allocation in claim.allocations
        ]


def _annotations(claim: AllocatedClaim, pods: ClaimPods) -> Mapping[str, Mapping[str, str]]:
    """Return the annotations of the claim's pods, by pod.

    With the webhook they are in the claim already, so pods are read only without it. Those that
    this driver added, for Tensor Fusion's hypervisor, are results and request nothing.
    """
    if pods.can_be_read and len(claim.pods) > 1:
        log.debug("shared_claim_uses_smallest_limits", claim=str(claim.ref), pods=len(claim.pods))
    return {
        name: {key: str(text) for key, text in workers.foreign_annotations(stored).items()}
        for name, stored in pods.stored.items()
    }
