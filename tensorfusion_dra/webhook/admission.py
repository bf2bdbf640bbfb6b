"""Decides on what the API server asks: reads pools and pods, and lets the rules in core decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import (
    claim_admission,
    compute_percent,
    dra_pool,
    parameter_rules,
    pod_admission,
    pod_request,
    pod_warnings,
)
from tensorfusion_dra.core.admission.dra_pool import DraPool
from tensorfusion_dra.core.admission.pod_admission import Placement
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.review import PASSED, Review, Verdict
from tensorfusion_dra.driver.ports.cluster import Objects
from tensorfusion_dra.webhook.ports import PodReader, PublishedSlices

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One method for each path; all may be called from any thread.

    Attributes:
        pools: GPUPools.
        templates: SchedulingConfigTemplates.
        scheduler: What pods with a share get in place of Tensor Fusion's scheduler; "" leaves it.
        slices: Of this driver.
        virtual: Whether nodes whose pools are no objects divide virtual amounts.
        enforces_hard: Whether the nodes' enforcer brings a limiter for hard isolation.
    """

    pools: Objects
    templates: Objects
    pods: PodReader
    slices: PublishedSlices
    scheduler: str
    virtual: bool
    enforces_hard: bool = False

    def pod(self, asked: Review) -> Verdict:
        """The pod with its share, if it asks for one and DRA is on for it."""
        if not _is_new(asked) or not pod_request.is_asking(asked.annotations):
            return PASSED
        try:
            return self._with_share(asked)
        except RetryableError as error:
            return _not_now(error)

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
            if pod is None:
                text = (
                    f"found no pod {ref} of UID {ref.uid}, expected the pod that the claim is for"
                )
                return _refused("metadata.ownerReferences", InputError(text))
            return self._filled(claim, pod, wait_seconds=asked.wait_seconds)
        except RetryableError as error:
            return _not_now(error)
        except InputError as error:
            return _refused("", InputError(f"pod {ref}: {error}"))

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

    def _with_share(self, asked: Review) -> Verdict:
        """The pod with its share, if DRA is on for it.

        Raises:
            RetryableError: The pod's pool or GPUs cannot be known now.
        """
        said = asked.annotations
        errors: list[FieldError] = []
        wanted = pod_request.parse(said, errors)
        pool = DraPool()
        try:
            pool = self._pool(wanted.pool)
        except InputError as error:
            where = pod_request.path_of(names.ANNOTATION_GPUPOOL)
            errors.append(FieldError(where, Reason.NOT_FOUND, str(error)))
        if not (pool.enabled if wanted.enabled is None else wanted.enabled):
            return PASSED
        takes_hard = self.enforces_hard or Isolation.HARD in pool.isolations
        errors += pod_admission.errors(asked.document, wanted, takes_hard=takes_hard)
        if not errors:
            try:
                wanted = self._in_tflops(wanted, pool.name, wait_seconds=asked.wait_seconds)
            except InputError as error:
                where = pod_request.path_of(names.ANNOTATION_COMPUTE_PERCENT_REQUEST)
                errors.append(FieldError(where, Reason.INVALID, str(error)))
        if errors:
            return Verdict(errors=errors)
        placement = Placement(pool=pool.name, template=pool.template, scheduler=self.scheduler)
        return Verdict(
            changed=pod_admission.admitted(asked.document, wanted, placement),
            warnings=pod_warnings.warnings(asked.document, said, wanted, placement),
        )

    def _filled(self, claim: Mapping[str, Any], pod: Item, *, wait_seconds: float) -> Verdict:
        """The claim with what its pod asks for.

        Raises:
            InputError: The pod's annotations, its pool or the claim cannot be used.
            RetryableError: What the pod asks for cannot be known now.
        """
        said = review.annotations_of(pod)
        if not pod_request.is_asking(said):
            return PASSED
        errors: list[FieldError] = []
        wanted = pod_request.parse(said, errors)
        if errors:
            raise InputError("; ".join(map(str, errors)))
        pool = dra_pool.choose(self._items(self.pools), wanted.pool)
        virtual = dra_pool.divides_virtual(pool) if pool else self.virtual
        name = str(pool["metadata"]["name"]) if pool else wanted.pool
        wanted = self._in_tflops(wanted, name, wait_seconds=wait_seconds)
        return Verdict(changed=claim_admission.filled(claim, wanted, pool=name, virtual=virtual))

    def _in_tflops(self, wanted: PodRequest, pool: str, *, wait_seconds: float) -> PodRequest:
        """What a pod asks for, in TFLOPS; slices are read only for pods that ask in percent."""
        if not compute_percent.is_asked(wanted):
            return wanted
        slices = self.slices.published(wait_seconds=wait_seconds)
        return compute_percent.in_tflops(wanted, slices, pool=pool)

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
