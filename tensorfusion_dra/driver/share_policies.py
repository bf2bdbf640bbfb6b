"""Policies of a claim's shares, merged from the claim, its DeviceClass, its pods and the node."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import structlog

from tensorfusion_dra.core.admission import container_claims
from tensorfusion_dra.core.claims import share_policy, workers
from tensorfusion_dra.core.claims.claim import AllocatedClaim, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.share_policy import ShareParameters, SharePolicy
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.driver.ports.cluster import Pods
from tensorfusion_dra.driver.projection import Projection

_MOST_AT_ONCE: Final = 16


class ClaimPods:
    """Reader of a claim's pods, which are read when they are first needed, all side by side."""

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

        def find(pod: PodRef) -> Mapping[str, Any]:
            return pods.find(pod, wait_seconds=self._deadline - time.monotonic()) or {}

        if len(self._claim.pods) < 2:
            return {str(pod): find(pod) for pod in self._claim.pods}
        with ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="read") as threads:
            # With the caller's context, which has the call's ID for the log.
            found = [threads.submit(copy_context().run, find, pod) for pod in self._claim.pods]
            return {
                str(pod): each.result() for pod, each in zip(self._claim.pods, found, strict=True)
            }


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


_WHY: Final = "limits by variables cannot tell two claims apart"


@dataclass(frozen=True, slots=True)
class ContainerNeighbours:
    """Claims that share a container with a claim.

    Attributes:
        names: Claims of the same namespace that a container uses together with the claim.
        is_known: False if the driver may not read pods; then every claim of the pods counts.
    """

    names: frozenset[str] = frozenset()
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedContainers:
    """Refusal of a claim whose limits would mix with those of another claim in the same container.

    Enforcers that set limits by environment variables cannot keep two claims of one container
    apart (core/admission/container_claims.py explains why). So of two such claims, the one that is
    prepared second is refused. The check has two steps:

    1. read() finds out which other claims the containers of the claim's pods use. It reads the
       pods from the API server, which may be slow, so it runs before the ledger's transaction.
    2. check() looks for a prepared claim among them. It runs inside the transaction that records
       the claim, so that of two claims that are prepared at the same time one is refused.

    Without the permission to read pods, it is unknown which containers use which claims. Then every
    prepared claim of the same pod counts as a claim of the same container.

    Example: container `train` uses the claims `a` and `b`, and the enforcer is HAMi-core. `a` is
    prepared. For `b`, read() returns `a`, check() finds its record, and `b` is refused. If only the
    container `log` used `b`, read() would return nothing, and both would be prepared.

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
    ) -> ContainerNeighbours:
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
            return ContainerNeighbours()
        if not pods.can_be_read:
            return ContainerNeighbours(is_known=False)
        found: set[str] = set()
        limited = any(each.limiter and each.isolation is not Isolation.SHARED for each in policies)
        for stored in filter(None, pods.stored.values()):
            if self.counts_by_pid and limited:
                _check_pid_namespaces(claim, stored)
            found |= container_claims.claims_sharing_a_container(stored, claim.ref.name)
        return ContainerNeighbours(frozenset(found))

    def check(
        self,
        claim: PreparedClaim,
        neighbours: ContainerNeighbours,
        recorded: Iterable[PreparedClaim],
    ) -> None:
        """Check that no prepared claim shares a container with this one, so that limits would mix.

        Args:
            claim: The record of a claim that fits.
            neighbours: Claims that share a container with it.
            recorded: The recorded claims of this node.

        Raises:
            ClaimError: A prepared claim does, or may do so because pods cannot be read.
        """
        if neighbours.is_known and not neighbours.names:
            return
        pods = {pod.uid for pod in claim.pods}
        for other in self._others(claim, recorded):
            text = f"claim {claim.ref}: found claim {other.ref} "
            if neighbours.is_known and other.ref.name in neighbours.names:
                raise ClaimError(
                    f"{text}in the same container, expected one claim for each container: "
                    f"{_WHY}; ask for its GPUs in one claim with several requests"
                )
            if not neighbours.is_known and pods & {pod.uid for pod in other.pods}:
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
