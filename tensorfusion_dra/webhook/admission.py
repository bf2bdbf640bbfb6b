"""Decides on what the API server asks: reads pools and pods, and lets the rules in core decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core import (
    asks,
    claim_admission,
    dra_pool,
    names,
    parameter_rules,
    pod_admission,
    pod_warnings,
    review,
)
from tensorfusion_dra.core.dra_pool import DraPool
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.field_errors import FieldError, Reason
from tensorfusion_dra.core.pod_admission import Placement
from tensorfusion_dra.core.review import PASSED, Review, Verdict
from tensorfusion_dra.driver.ports.cluster import Objects
from tensorfusion_dra.webhook.ports import PodReader

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One method for each path; all may be called from any thread.

    Attributes:
        pools: GPUPools.
        templates: SchedulingConfigTemplates.
        scheduler: What pods with a share get in place of Tensor Fusion's scheduler; "" leaves it.
        virtual: Whether nodes whose pools are no objects divide virtual amounts.
        enforces_hard: Whether the nodes' enforcer brings a limiter for hard isolation.
    """

    pools: Objects
    templates: Objects
    pods: PodReader
    scheduler: str
    virtual: bool
    enforces_hard: bool = False

    def pod(self, asked: Review) -> Verdict:
        """The pod with its share, if it asks for one and DRA is on for it."""
        said = asked.annotations
        if not _is_new(asked) or not asks.is_asking(said):
            return PASSED
        errors: list[FieldError] = []
        wanted = asks.parse(said, errors)
        pool = DraPool()
        try:
            pool = self._pool(wanted.pool)
        except RetryableError as error:
            return _not_now(error)
        except InputError as error:
            where = asks.path_of(names.ANNOTATION_GPUPOOL)
            errors.append(FieldError(where, Reason.NOT_FOUND, str(error)))
        if not (pool.enabled if wanted.enabled is None else wanted.enabled):
            return PASSED
        errors += pod_admission.errors(asked.document, wanted, takes_hard=self.enforces_hard)
        if errors:
            return Verdict(errors=errors)
        placement = Placement(pool=pool.name, template=pool.template, scheduler=self.scheduler)
        return Verdict(
            changed=pod_admission.admitted(asked.document, wanted, placement),
            warnings=pod_warnings.warnings(asked.document, said, wanted, placement),
        )

    def claim(self, asked: Review) -> Verdict:
        """The claim with what its pod asks for, if it is made from Tensor Fusion's template.

        The claim's pod exists before the claim does, so one that is not there is gone for good
        and its claim with it: refused, which the claim controller takes as it takes any failure.
        """
        claim = asked.document
        if not _is_new(asked) or not claim_admission.is_labelled(claim):
            return PASSED
        try:
            ref = claim_admission.owner(claim, asked.namespace)
        except InputError as error:
            return _refused("metadata.ownerReferences", error)
        try:
            pod = self.pods.find(ref, wait_seconds=asked.wait_seconds)
            pools = self._items(self.pools)
        except RetryableError as error:
            return _not_now(error)
        if pod is None:
            text = f"found no pod {ref} of UID {ref.uid}, expected the pod that the claim is for"
            return _refused("metadata.ownerReferences", InputError(text))
        return self._filled(claim, pod, pools, subject=f"pod {ref}: ")

    def parameters(self, asked: Review) -> Verdict:
        """Whether the opaque parameters for this driver can be read."""
        if asked.operation not in {"CREATE", "UPDATE"} or asked.subresource:
            return PASSED
        found = tuple(
            parameter_rules.errors(
                asked.kind, asked.document, asked.old, enforces_hard=self.enforces_hard
            )
        )
        return Verdict(errors=found) if found else PASSED

    def _filled(
        self, claim: Mapping[str, Any], pod: Item, pools: Sequence[Item], *, subject: str
    ) -> Verdict:
        said = review.annotations_of(pod)
        if not asks.is_asking(said):
            return PASSED
        errors: list[FieldError] = []
        wanted = asks.parse(said, errors)
        if errors:
            return Verdict(errors=[FieldError("", e.reason, f"{subject}{e}") for e in errors])
        try:
            pool = dra_pool.choose(pools, wanted.pool)
            virtual = dra_pool.divides_virtual(pool) if pool else self.virtual
            name = str(pool["metadata"]["name"]) if pool else wanted.pool
            changed = claim_admission.filled(claim, wanted, pool=name, virtual=virtual)
        except InputError as error:
            return _refused("", InputError(f"{subject}{error}"))
        return Verdict(changed=changed)

    def _pool(self, name: str) -> DraPool:
        pool = dra_pool.choose(self._items(self.pools), name)
        if pool is None:
            return DraPool(name=name)
        return dra_pool.parse(pool, self._items(self.templates))

    def _items(self, objects: Objects) -> Sequence[Item]:
        """None, where the cluster does not have the kind."""
        try:
            return objects.items()
        except InputError:
            return ()


def _is_new(asked: Review) -> bool:
    return asked.operation == "CREATE" and not asked.subresource


def _refused(path: str, error: InputError) -> Verdict:
    return Verdict(errors=[FieldError(path, Reason.INVALID, str(error))])


def _not_now(error: RetryableError) -> Verdict:
    found = FieldError("", Reason.INVALID, str(error))
    return Verdict(errors=[found], code=review.UNAVAILABLE)
