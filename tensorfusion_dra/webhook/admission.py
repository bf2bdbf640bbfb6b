"""Verdicts on admission requests: reads pools, pods and slices, and applies the rules in core."""

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final, Protocol

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import (
    claim_admission,
    dialects,
    pod_admission,
    pod_request,
)
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.admission.pod_admission import Placement
from tensorfusion_dra.core.admission.pod_request import DraPool, PodRequest
from tensorfusion_dra.core.cel import dialect
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.review import PASSED, Review, Verdict
from tensorfusion_dra.driver.ports import Objects

Item = Mapping[str, Any]

_FRESH_SECONDS: Final = 10.0
_WARNING_SECONDS: Final = 1.0
"""Longest wait for what only a warning needs."""


class PodReader(Protocol):
    """Pods at the API server."""

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """Return the pod with this UID as it is stored now; None if it is gone or replaced.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...


class PublishedSlices(Protocol):
    """This driver's ResourceSlices at the API server."""

    def published(self, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        """Return the slices of all nodes as they are stored now.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...


class PublishedPools:
    """Names of the GPUPools that nodes publish; safe for all threads.

    They are kept for a few seconds, because many pods may come at once.
    """

    def __init__(self, slices: PublishedSlices) -> None:
        self._slices = slices
        self._lock = Lock()  # guards both below; one thread reads at a time
        self._names: frozenset[str] = frozenset()
        self._read_at = -math.inf

    def names(self, *, wait_seconds: float) -> frozenset[str]:
        """Return the names as they were at most ten seconds ago.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        with self._lock:
            if time.monotonic() - self._read_at > _FRESH_SECONDS:
                read_at = time.monotonic()
                self._names = devices.gpupools(self._slices.published(wait_seconds=wait_seconds))
                self._read_at = read_at
            return self._names


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admission rules with one method for each webhook path, callable from any thread.

    Attributes:
        pools: GPUPools.
        templates: SchedulingConfigTemplates.
        scheduler: The scheduler that replaces Tensor Fusion's in pods with a share; "" keeps
            Tensor Fusion's.
        slices: The published slices of this driver.
        virtual: True if nodes whose pool is no GPUPool object divide virtual amounts.
        enforces_hard: True if the nodes' enforcer has a limiter for hard isolation.
        names_containers: True if the nodes' enforcer has a limiter that needs its container's name.
    """

    pools: Objects
    templates: Objects
    pods: PodReader
    slices: PublishedSlices
    scheduler: str
    virtual: bool
    enforces_hard: bool = False
    names_containers: bool = False
    _published: PublishedPools = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_published", PublishedPools(self.slices))

    def pod(self, admission_review: Review) -> Verdict:
        """Add the share to a new pod that requests one, if DRA is enabled for it."""
        if not _is_new(admission_review) or not pod_request.requests_gpu(
            admission_review.annotations
        ):
            return PASSED
        try:
            return self._with_share(admission_review)
        except RetryableError as error:
            return review.unavailable(error)

    def dialect(self, dialect: Dialect, admission_review: Review) -> Verdict:
        """Translate a new pod from a dialect, for the review of the translated pod that follows."""
        if not _is_new(admission_review):
            return PASSED
        pod = copy.deepcopy(admission_review.document)
        found = dialects.translate(pod, {dialect})
        refused = [(each.path, each.text) for each in found.found if each.is_refused]
        refused += [("spec", found.error)] if found.error else []
        if refused:
            return Verdict(errors=[FieldError(p, Reason.INVALID, text) for p, text in refused])
        if not found.annotations:
            return PASSED
        dialects.apply(pod, found)
        words = [f"{each.key}: {each.text}" for each in found.found]
        return Verdict(changed=pod, warnings=[*words, *(f"{dialect}: {n}" for n in found.notes)])

    def claim(self, admission_review: Review) -> Verdict:
        """Fill a new claim from Tensor Fusion's template with its pod's request.

        A pod exists before its claim does. If the pod is missing, it is gone for good and the claim
        is not needed, so the claim is refused. The claim controller treats that like any failure.
        """
        claim = admission_review.document
        if not _is_new(admission_review) or not claim_admission.is_labelled(claim):
            return PASSED
        try:
            ref = claim_admission.owner(claim, admission_review.namespace)
        except InputError as error:
            return _refused("metadata.ownerReferences", error)
        try:
            pod = self.pods.find(ref, wait_seconds=admission_review.wait_seconds)
            if pod is None:
                text = (
                    f"found no pod {ref} of UID {ref.uid}, expected the pod that the claim is for"
                )
                return _refused("metadata.ownerReferences", InputError(text))
            return self._filled(claim, pod, wait_seconds=admission_review.wait_seconds)
        except RetryableError as error:
            return review.unavailable(error)
        except InputError as error:
            return _refused("", InputError(f"pod {ref}: {error}"))

    def parameters(self, admission_review: Review) -> Verdict:
        """Refuse an object whose opaque parameters for this driver are invalid."""
        if admission_review.operation not in {"CREATE", "UPDATE"} or admission_review.subresource:
            return PASSED
        found = tuple(
            claim_admission.errors(
                admission_review.kind,
                admission_review.document,
                admission_review.old,
                enforces_hard=self.enforces_hard,
            )
        )
        return Verdict(errors=found) if found else PASSED

    def _with_share(self, admission_review: Review) -> Verdict:
        """Return a verdict that adds the share to the pod, if DRA is enabled for it.

        Raises:
            RetryableError: The pod's pool or its GPUs are not known at present.
        """
        annotations = admission_review.annotations
        errors: list[FieldError] = []
        wanted = pod_request.parse(annotations, errors)
        pool, unknown = DraPool(), ""
        try:
            pool = self._pool(wanted.pool)
        except InputError as error:
            unknown = str(error)
        if not (pool.enabled if wanted.enabled is None else wanted.enabled):
            return PASSED
        wait_seconds = admission_review.wait_seconds
        if self._is_by_settings(wanted.pool, wait_seconds=wait_seconds):
            pool, unknown = replace(pool, name=wanted.pool), ""
        if unknown:
            where = pod_request.path_of(names.ANNOTATION_GPUPOOL)
            errors.append(FieldError(where, Reason.NOT_FOUND, unknown))
        takes_hard = self.enforces_hard or Isolation.HARD in pool.isolations
        errors += _selector_errors(wanted)
        errors += pod_admission.errors(admission_review.document, wanted, takes_hard=takes_hard)
        choices: tuple[PodRequest, ...] = ()
        if not errors:
            try:
                choices = self._alternatives(wanted, pool.name, wait_seconds=wait_seconds)
            except InputError as error:
                where = pod_request.path_of(
                    names.ANNOTATION_VRAM_PERCENT_REQUEST
                    if wanted.vram_percent
                    else names.ANNOTATION_COMPUTE_PERCENT_REQUEST
                )
                errors.append(FieldError(where, Reason.INVALID, str(error)))
        if errors:
            return Verdict(errors=errors)
        placement = Placement(
            pool=pool.name,
            template=pool.template,
            scheduler=self.scheduler,
            names_containers=self.names_containers,
            is_one_of_several=not pool.name and self._are_several(),
        )
        # The amounts of several models are only in the claim, not in the pod's annotations.
        wanted = choices[0] if len(wanted.models or choices) == 1 else wanted
        return Verdict(
            changed=pod_admission.admitted(admission_review.document, wanted, placement),
            warnings=pod_admission.warnings(
                admission_review.document, annotations, choices[0], placement
            ),
        )

    def _filled(self, claim: Mapping[str, Any], pod: Item, *, wait_seconds: float) -> Verdict:
        """Return a verdict that fills the claim with its pod's request.

        Raises:
            InputError: The pod's annotations, its pool or the claim are invalid.
            RetryableError: The pools or the slices are not known at present.
        """
        annotations = review.annotations_of(pod)
        if not pod_request.requests_gpu(annotations):
            return PASSED
        errors: list[FieldError] = []
        wanted = pod_request.parse(annotations, errors)
        if errors:
            raise InputError("; ".join(map(str, errors)))
        pool = None
        if not self._is_by_settings(wanted.pool, wait_seconds=wait_seconds):
            pool = pod_request.choose(self._items(self.pools), wanted.pool)
        # Tenants of a pool that hands out more than its cards have divide the virtual amounts.
        virtual = gpupool.parse(pool).oversubscription is not None if pool else self.virtual
        name = str(pool["metadata"]["name"]) if pool else wanted.pool
        choices = self._alternatives(wanted, name, wait_seconds=wait_seconds)
        return Verdict(changed=claim_admission.filled(claim, choices, pool=name, virtual=virtual))

    def _alternatives(
        self, wanted: PodRequest, pool: str, *, wait_seconds: float
    ) -> tuple[PodRequest, ...]:
        """Return the pod's request in amounts; slices are read only for requests in percent."""
        slices: Sequence[Item] = ()
        if wanted.has_percentages:
            slices = self.slices.published(wait_seconds=wait_seconds)
            for expression in filter(None, (wanted.expression, wanted.selector)):
                from tensorfusion_dra.scheduling import cel_evaluation  # noqa: PLC0415

                slices = cel_evaluation.selected(slices, dialect.translate(expression))
        return pod_request.alternatives(wanted, slices, pool=pool)

    def _is_by_settings(self, name: str, *, wait_seconds: float) -> bool:
        """Return True if the pod's nodes are in their pools by settings, beside GPUPools.

        Raises:
            RetryableError: The pools or the slices are not known at present.
        """
        pools = self._items(self.pools)
        if not pools or any(pool["metadata"]["name"] == name for pool in pools):
            return False
        published = self._published.names(wait_seconds=wait_seconds)
        return pod_request.is_by_settings(name, pools, published)

    def _are_several(self) -> bool:
        """Return True if nodes publish several pools; False if that cannot be read at once."""
        try:
            return len(self._published.names(wait_seconds=_WARNING_SECONDS)) > 1
        except RetryableError:
            return False

    def _pool(self, name: str) -> DraPool:
        pool = pod_request.choose(self._items(self.pools), name)
        if pool is None:
            return DraPool(name=name)
        return pod_request.parse_pool(pool, self._items(self.templates))

    def _items(self, objects: Objects) -> Sequence[Item]:
        """Return the cached objects; empty if the cluster does not have the kind."""
        try:
            return objects.items()
        except InputError:
            return ()


def _is_new(admission_review: Review) -> bool:
    return admission_review.operation == "CREATE" and not admission_review.subresource


def _selector_errors(wanted: PodRequest) -> Iterator[FieldError]:
    """Yield why the API server would refuse the claim for its pod's own selectors.

    The CEL library takes 20 MB of memory, so it is loaded with the first selector.
    """
    own = (
        (names.ANNOTATION_CEL_EXPRESSION, wanted.expression),
        (names.ANNOTATION_CEL_FILTER, wanted.selector),
    )
    for annotation, expression in own:
        if not expression:
            continue
        from tensorfusion_dra.scheduling import cel_evaluation  # noqa: PLC0415

        if error := cel_evaluation.refusal(dialect.translate(expression)):
            yield FieldError(pod_request.path_of(annotation), Reason.INVALID, error)


def _refused(path: str, error: InputError) -> Verdict:
    return Verdict(errors=[FieldError(path, Reason.INVALID, str(error))])
