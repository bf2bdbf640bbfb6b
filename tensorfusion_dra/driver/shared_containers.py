"""Refusal of a claim whose limits would mix with those of another claim in the same container.

Enforcers that set limits by environment variables cannot keep two claims of one container apart
(core/admission/container_claims.py explains why). So of two such claims, the one that is prepared
second is refused. The check has two steps:

1. read() finds out which other claims the containers of the claim's pods use. It reads the pods
   from the API server, which may be slow, so it runs before the step of the ledger.
2. check() looks for a prepared claim among them. It runs inside the step that records the claim, so
   that of two claims that are prepared at the same time one is refused.

Without the permission to read pods, it is unknown which containers use which claims. Then every
prepared claim of the same pod counts as a claim of the same container.

Example: container `train` uses the claims `a` and `b`, and the enforcer is HAMi-core. `a` is
prepared. For `b`, read() returns `a`, check() finds its record, and `b` is refused. If only the
container `log` used `b`, read() would return nothing, and both would be prepared.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.admission import container_claims
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.driver.claim_pods import ClaimPods
from tensorfusion_dra.driver.projection import Projection

_WHY: Final = "limits by variables cannot tell two claims apart"


@dataclass(frozen=True, slots=True)
class Together:
    """Claims that share a container with a claim.

    Attributes:
        names: Claims of the same namespace that a container uses together with the claim.
        is_known: False if the driver may not read pods; then every claim of the pods counts.
    """

    names: frozenset[str] = frozenset()
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContainers:
    """Check for other claims in a claim's containers.

    Attributes:
        projection: Knows how the enforcer of each record sets its limits.
        fixed: Isolations in which the configured enforcer sets limits by environment variables.
        counts_by_pid: Whether it needs one PID namespace for the containers of a request.
    """

    projection: Projection
    fixed: frozenset[Isolation]
    counts_by_pid: bool = False

    def read(
        self, claim: AllocatedClaim, policies: Sequence[SharePolicy], pods: ClaimPods
    ) -> Together:
        """Return the claims that share a container with this claim, as its pods list them.

        No pod is read if none of the claim's limits is set by environment variables.

        Args:
            claim: As allocated.
            policies: Of the claim's allocations.
            pods: The claim's pods.

        Raises:
            ClaimError: Several containers of a pod would have the whole limit each.
            RetryableError: A pod cannot be read now.
        """
        if not any(each.isolation in self.fixed for each in policies):
            return Together()
        if not pods.can_be_read:
            return Together(is_known=False)
        found: set[str] = set()
        limited = any(each.limiter and each.isolation is not Isolation.SHARED for each in policies)
        for stored in filter(None, pods.stored.values()):
            if self.counts_by_pid and limited:
                _check_pid_namespaces(claim, stored)
            found |= container_claims.claims_sharing_a_container(stored, claim.ref.name)
        return Together(frozenset(found))

    def check(
        self, claim: PreparedClaim, together: Together, recorded: Iterable[PreparedClaim]
    ) -> None:
        """Check that no prepared claim shares a container with this one, so that limits would mix.

        Args:
            claim: The record of a claim that fits.
            together: Claims that share a container with it.
            recorded: The recorded claims of this node.

        Raises:
            ClaimError: A prepared claim does, or may do so because pods cannot be read.
        """
        if together.is_known and not together.names:
            return
        pods = {pod.uid for pod in claim.pods}
        for other in self._others(claim, recorded):
            text = f"claim {claim.ref}: found claim {other.ref} "
            if together.is_known and other.ref.name in together.names:
                raise ClaimError(
                    f"{text}in the same container, expected one claim for each container: "
                    f"{_WHY}; ask for its GPUs in one claim with several requests"
                )
            if not together.is_known and pods & {pod.uid for pod in other.pods}:
                raise ClaimError(
                    f"{text}for the same pod, expected one claim for each pod: {_WHY}, and this "
                    "driver may not read which containers use them (--read-pods); ask for the "
                    "pod's GPUs in one claim with several requests"
                )

    def _others(
        self, claim: PreparedClaim, records: Iterable[PreparedClaim]
    ) -> Iterable[PreparedClaim]:
        """Yield the records of the namespace whose limits would mix in the same container."""
        is_fixed = self.projection.sets_limits_by_environment(claim)
        for other in records:
            if other.ref.uid == claim.ref.uid or other.ref.namespace != claim.ref.namespace:
                continue
            if other.shares and (is_fixed or self.projection.sets_limits_by_environment(other)):
                yield other


def _check_pid_namespaces(claim: AllocatedClaim, pod: Mapping[str, Any]) -> None:
    """Refuse a pod in which two containers would count their memory under the same PIDs.

    Raises:
        ClaimError: Two containers use one request of the claim at the same time.
    """
    together = container_claims.containers_at_once(pod, claim.ref.name)
    if together:
        raise ClaimError(
            f"claim {claim.ref}: found containers {' and '.join(together)} that use it at the same "
            "time, expected one, or shareProcessNamespace: true in the pod: otherwise each would "
            "have the whole limit, because processes are told apart by their PIDs"
        )
