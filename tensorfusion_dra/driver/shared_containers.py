"""Refuses a claim whose container would mix up its limits with those of another claim."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.admission import container_claims
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.driver.ports.cluster import Pods
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.state.ledger import Transaction

_WHY: Final = "limits by variables cannot tell two claims apart"


@dataclass(frozen=True, slots=True)
class Together:
    """What is known of the containers of a claim's pods.

    Attributes:
        names: Claims of the same namespace that a container uses together with the claim.
        is_known: False if the pods may not be read: every claim of the pods counts then.
    """

    names: frozenset[str] = frozenset()
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContainers:
    """Finds the other claims of a claim's containers.

    Attributes:
        projection: Knows what the enforcer of each record does.
        fixed: Isolations in which the configured enforcer sets limits by the environment.
        pods: None if pods are not to be read, for lack of the right to.
    """

    projection: Projection
    fixed: frozenset[Isolation]
    pods: Pods | None

    def read(
        self, claim: AllocatedClaim, policies: Sequence[SharePolicy], *, wait_seconds: float
    ) -> Together:
        """Read from the claim's pods which claims its containers use.

        Nothing is read where limits do not depend on it. Read before the ledger's step, as the
        API server may be slow.

        Raises:
            RetryableError: A pod cannot be read now.
        """
        if not any(each.isolation in self.fixed for each in policies):
            return Together()
        if self.pods is None:
            return Together(is_known=False)
        found: set[str] = set()
        for pod in claim.pods:
            stored = self.pods.find(pod, wait_seconds=wait_seconds)
            if stored is not None:
                found |= container_claims.claims_sharing_a_container(stored, claim.ref.name)
        return Together(frozenset(found))

    def check(self, claim: PreparedClaim, together: Together, step: Transaction) -> None:
        """Return if the claim's containers use no other claim with which limits would mix.

        Raises:
            ClaimError: One of them does, or it cannot be known.
        """
        if together.is_known and not together.names:
            return
        pods = {pod.uid for pod in claim.pods}
        for other in self._others(claim, step.claims()):
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
        """The claims of the namespace whose limits would mix with the claim's."""
        is_fixed = self.projection.sets_limits_by_environment(claim)
        for other in records:
            if other.ref.uid == claim.ref.uid or other.ref.namespace != claim.ref.namespace:
                continue
            if other.shares and (is_fixed or self.projection.sets_limits_by_environment(other)):
                yield other
