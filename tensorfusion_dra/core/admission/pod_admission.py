"""Admission of a pod that requests a share: checks, claim and warnings (user guide, 1.1)."""

import copy
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_containers, pod_request
from tensorfusion_dra.core.admission.pod_request import REQUESTING_ANNOTATIONS, PodRequest
from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

Json = dict[str, Any]

REFUSED_ENV: Final = frozenset(
    {names.ENV_TEST_MODE, *names.ENV_BYPASSES, *names.HAMI_CORE_BYPASSES}
)
"""Environment variables by which a container could bypass its limits."""
_AMOUNTS: Final = (
    names.ANNOTATION_TFLOPS_REQUEST,
    names.ANNOTATION_VRAM_REQUEST,
    names.ANNOTATION_TFLOPS_LIMIT,
    names.ANNOTATION_VRAM_LIMIT,
    names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_VRAM_PERCENT_REQUEST,
    names.ANNOTATION_GPU_COUNT,
)
_NEAR: Final = 0.92
"""Similarity of an annotation of which two letters are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Source of a pod's share.

    Attributes:
        pool: GPUPool of the pod; "" for none.
        template: Name of the ResourceClaimTemplate, in the pod's namespace.
        scheduler: Scheduler that replaces Tensor Fusion's; "" keeps that one.
        is_one_of_several: True if nodes publish several pools, so that a pod has a choice.
        names_containers: True to tell each container its name, which Tensor Fusion's limiter needs.
    """

    pool: str
    template: str
    scheduler: str
    names_containers: bool = False
    is_one_of_several: bool = False


def errors(pod: Mapping[str, Any], wanted: PodRequest, *, takes_hard: bool) -> Iterator[FieldError]:
    """Yield every reason for which the pod cannot have its share.

    Args:
        takes_hard: True if the pod may choose hard isolation.
    """
    metadata = as_map(pod.get("metadata"))
    yield from _misspelled(as_map(metadata.get("annotations")))
    labels = as_map(metadata.get("labels"))
    if labels.get(names.LABEL_TENSOR_FUSION_ENABLED) == "true":
        yield FieldError(
            f"metadata.labels[{names.LABEL_TENSOR_FUSION_ENABLED}]",
            Reason.FORBIDDEN,
            "found true, so Tensor Fusion's own webhook and scheduler give the pod a GPU as well, "
            f"expected only one of the two: remove the label, or set "
            f"{names.ANNOTATION_DRA_ENABLED} to false",
        )
    yield from _limit_errors(wanted)
    if wanted.share.isolation is Isolation.HARD and not takes_hard:
        where = pod_request.path_of(names.ANNOTATION_ISOLATION)
        yield FieldError(where, Reason.FORBIDDEN, f"found hard, expected {isolation.HARD_NEEDS}")
    every = [name_of(container) for _, container in pod_containers.with_paths(pod)]
    for name in wanted.containers:
        if name not in every:
            text = f"found {name!r}, expected one of {', '.join(every)}"
            where = pod_request.path_of(names.ANNOTATION_INJECT_CONTAINER)
            yield FieldError(where, Reason.INVALID, text)
    chosen = sharing(pod, wanted)
    for path, container in pod_containers.with_paths(pod):
        if name_of(container) not in chosen:
            continue
        yield from _partial_use(path, container, wanted)
        for index, variable in enumerate(as_list(container.get("env"))):
            switch = name_of(variable)
            if switch in REFUSED_ENV:
                text = f"found {switch}, expected no switch that turns the limiter off"
                yield FieldError(f"{path}.env[{index}].name", Reason.FORBIDDEN, text)


def _misspelled(annotations: Mapping[str, object]) -> Iterator[FieldError]:
    """Yield an error for each annotation that is an amount but for one or two letters.

    A warning would not do: it goes to the controller that creates the pod, and the pod would get
    all of what it left out.
    """
    for annotation in annotations:
        close = difflib.get_close_matches(annotation, _AMOUNTS, n=1, cutoff=_NEAR)
        if close and annotation not in _AMOUNTS:
            text = f"found an unknown annotation; did you mean {close[0]}?"
            yield FieldError(pod_request.path_of(annotation), Reason.NOT_SUPPORTED, text)


def _limit_errors(wanted: PodRequest) -> Iterator[FieldError]:
    """Yield an error for each limit below its request: no node would prepare such a claim."""
    limits = (
        (names.ANNOTATION_TFLOPS_LIMIT, wanted.share.tflops_limit, wanted.tflops),
        (names.ANNOTATION_VRAM_LIMIT, wanted.share.vram_limit, wanted.vram),
        (names.ANNOTATION_COMPUTE_PERCENT_LIMIT, wanted.percent_limit, wanted.percent),
    )
    for annotation, limit, request in limits:
        if limit and request and limit < request:
            text = f"found {limit}, expected at least the request of {request}"
            yield FieldError(pod_request.path_of(annotation), Reason.INVALID, text)


def _partial_use(path: str, container: Json, wanted: PodRequest) -> Iterator[FieldError]:
    """Yield an error for each use of a single request: the container would get only one GPU."""
    uses = as_list(as_map(container.get("resources")).get("claims"))
    for index, use in enumerate(map(as_map, uses)):
        if wanted.count > 1 and use.get("name") == names.POD_CLAIM and use.get("request"):
            where = f"{path}.resources.claims[{index}].request"
            text = (
                f"found {str(use['request'])[:80]!r}, expected none: each of the {wanted.count} "
                "GPUs has its own request; a container gets all of them only by the claim's name"
            )
            yield FieldError(where, Reason.INVALID, text)


def sharing(pod: Mapping[str, Any], wanted: PodRequest) -> frozenset[str]:
    """Return the names of the containers that get the share.

    If the pod names some, these do. Otherwise all its containers do, and those init containers that
    request whole GPUs: most init containers only prepare something, but one that needs a GPU must
    find it.
    """
    if wanted.containers:
        return frozenset(wanted.containers)
    return frozenset(
        name_of(container)
        for path, container in pod_containers.with_paths(pod)
        if path.startswith("spec.containers") or _requests_whole_gpus(container)
    )


def _requests_whole_gpus(container: Mapping[str, Any]) -> bool:
    """Return True if the container requests or limits NVIDIA's extended resource."""
    resources = as_map(container.get("resources"))
    return any(names.NVIDIA_GPU in as_map(resources.get(kind)) for kind in ("requests", "limits"))


def admitted(pod: Mapping[str, Any], wanted: PodRequest, placement: Placement) -> Json:
    """Return the pod with its claim, which its containers use, and canonical annotations.

    A pod that was admitted before is returned unchanged.
    """
    result = copy.deepcopy(dict(pod))
    chosen = sharing(pod, wanted)
    annotations = _made(_made(result, "metadata"), "annotations")
    annotations.update(_canonical(pod, wanted, placement, chosen))
    spec = _made(result, "spec")
    if placement.scheduler and spec.get("schedulerName") == names.TENSOR_FUSION_SCHEDULER:
        spec["schedulerName"] = placement.scheduler
    _add_named(
        spec,
        "resourceClaims",
        {"name": names.POD_CLAIM, "resourceClaimTemplateName": placement.template},
    )
    for _, container in pod_containers.with_paths(result):
        if _requests_whole_gpus(container):
            for kind in ("requests", "limits"):
                _made(_made(container, "resources"), kind).pop(names.NVIDIA_GPU, None)
        if name_of(container) in chosen:
            _add_named(_made(container, "resources"), "claims", {"name": names.POD_CLAIM})
            if placement.names_containers:
                name = {"name": names.ENV_CONTAINER_NAME, "value": name_of(container)}
                _add_named(container, "env", name)
    return result


def _canonical(
    pod: Mapping[str, Any], wanted: PodRequest, placement: Placement, chosen: frozenset[str]
) -> dict[str, str]:
    """Return the annotations in the spelling that the hypervisor and the node read."""
    order = [name_of(container) for _, container in pod_containers.with_paths(pod)]
    share = wanted.share
    canonical = {
        names.ANNOTATION_DRA_ENABLED: "true",
        names.ANNOTATION_GPU_COUNT: str(wanted.count),
        names.ANNOTATION_GPUPOOL: placement.pool,
        names.ANNOTATION_INJECT_CONTAINER: ",".join(name for name in order if name in chosen),
        names.ANNOTATION_TFLOPS_REQUEST: str(wanted.tflops or ""),
        names.ANNOTATION_VRAM_REQUEST: str(wanted.vram or ""),
        names.ANNOTATION_TFLOPS_LIMIT: str(share.tflops_limit or ""),
        names.ANNOTATION_VRAM_LIMIT: str(share.vram_limit or ""),
    }
    return {annotation: text for annotation, text in canonical.items() if text}


def _add_named(holder: Json, field: str, entry: Json) -> None:
    """Append the entry to the list in a field, unless the list has an entry of its name."""
    listed = as_list(holder.get(field))
    if not any(name_of(existing) == entry["name"] for existing in listed):
        holder[field] = [*listed, entry]


def _made(holder: Json, field: str) -> Json:
    """Return the object in a field for modification; create it if there is none."""
    found = holder.get(field)
    if not isinstance(found, dict):
        found = holder[field] = {}
    return found


KNOWN_ANNOTATIONS: Final = frozenset(
    {
        *REQUESTING_ANNOTATIONS,
        names.ANNOTATION_GPUPOOL,
        names.ANNOTATION_CEL_FILTER,
        names.ANNOTATION_INJECT_CONTAINER,
        names.ANNOTATION_REQUIRE_ENFORCEMENT,
        *names.SHARE_ANNOTATIONS,
    }
)

# Annotations of Tensor Fusion's pkg/constants that users write and that have an effect only there.
WITHOUT_EFFECT: Final = {
    "workload-profile": "its amounts are not read; set them as annotations",
    "disable-features": "the node's enforcer determines the features",
    "vendor": "this driver has NVIDIA GPUs only",
    "gpu-indices": "name a GPU by its uuid in dra-cel-expression",
    "partition-id": "cards are not partitioned",
    "container-gpu-count": "every container gets all GPUs of its pod",
}
OTHERS: Final = frozenset(
    {
        *("is-local-gpu", "sidecar-worker", "embedded-worker", "dedicated-worker"),
        *("workload", "workload-mode", "worker-pod-template", "worker-name", "selected-workload"),
        *("enabled-replicas", "pending-owned-workload", "hourly-pricing", "eviction-protection"),
        *("autoscale", "autoscale-target", "auto-resources", "auto-replicas"),
        *("auto-scale-target-resource", "gpu-ids", "container-gpus", "index", "cluster"),
    }
)
"""Annotations that Tensor Fusion's own components write and read; they need no warning."""


def warnings(
    pod: Mapping[str, Any], annotations: Mapping[str, str], wanted: PodRequest, placement: Placement
) -> list[str]:
    """Return the warnings, one line each; the API server truncates them at 256 characters."""
    return [
        *_of_names(annotations),
        *_of_amounts(wanted),
        *_of_placement(pod, wanted, placement),
        *_of_containers(pod, sharing(pod, wanted)),
    ]


def _of_names(annotations: Mapping[str, str]) -> Iterator[str]:
    known = {name.removeprefix(names.ANNOTATION_PREFIX) for name in KNOWN_ANNOTATIONS}
    for annotation in annotations:
        short = annotation.removeprefix(names.ANNOTATION_PREFIX)
        if short in {annotation, *known, *OTHERS} or short.startswith(("gang-", "pool-")):
            continue
        if short in WITHOUT_EFFECT:
            yield f"{annotation}: has no effect in DRA mode: {WITHOUT_EFFECT[short]}"
            continue
        close = difflib.get_close_matches(short, known, n=1)
        hint = f"; did you mean {names.ANNOTATION_PREFIX}{close[0]}?" if close else ""
        yield f"{annotation[:120]}: unknown annotation{hint}"


def _of_amounts(wanted: PodRequest) -> Iterator[str]:
    if wanted.whole:
        if wanted.tflops or wanted.vram:
            is_shared = wanted.share.isolation is Isolation.SHARED
            reason = names.ANNOTATION_ISOLATION if is_shared else names.ANNOTATION_DEDICATED_GPU
            yield f"{reason}: the pod gets whole GPUs; its amounts are ignored"
        return
    both = (
        (names.ANNOTATION_TFLOPS_REQUEST, wanted.tflops, "compute"),
        (names.ANNOTATION_VRAM_REQUEST, wanted.vram, "memory"),
    )
    for annotation, amount, what in both:
        if amount is None:
            yield f"{annotation}: not set, so the pod takes all {what} of its GPUs"
    if wanted.vram and wanted.vram.nano < MIB * NANO:
        yield f"{names.ANNOTATION_VRAM_REQUEST}: {wanted.vram} bytes; did you mean {wanted.vram}Gi?"


def _of_placement(
    pod: Mapping[str, Any], wanted: PodRequest, placement: Placement
) -> Iterator[str]:
    spec = as_map(pod.get("spec"))
    if placement.is_one_of_several and not placement.pool and not wanted.expression:
        yield f"{names.ANNOTATION_GPUPOOL}: not set, so GPUs of every pool match"
    if spec.get("schedulerName") == names.TENSOR_FUSION_SCHEDULER:
        yield (
            f"spec.schedulerName: in DRA mode {placement.scheduler} places the pod, "
            f"not {names.TENSOR_FUSION_SCHEDULER}"
            if placement.scheduler
            else f"spec.schedulerName: {names.TENSOR_FUSION_SCHEDULER} must be a scheduler that "
            "allocates claims; otherwise the pod stays Pending"
        )
    if spec.get("nodeName"):
        yield "spec.nodeName: the pod bypasses the scheduler, so its claim is never allocated"
    for entry in map(as_map, as_list(spec.get("resourceClaims"))):
        template = entry.get("resourceClaimTemplateName")
        if name_of(entry) == names.POD_CLAIM and template != placement.template:
            found = template or entry.get("resourceClaimName")
            yield (
                f"spec.resourceClaims: {names.POD_CLAIM} keeps {found} instead of "
                f"{placement.template}"
            )


def _of_containers(pod: Mapping[str, Any], chosen: frozenset[str]) -> Iterator[str]:
    for _, container in pod_containers.with_paths(pod):
        name = name_of(container)
        if name not in chosen:
            if _requests_whole_gpus(container):
                yield f"container {name}: {names.NVIDIA_GPU} was removed; it gets no share"
            continue
        if as_map(container.get("securityContext")).get("privileged") is True:
            yield f"container {name}: is privileged, so it sees every GPU of its node"
        env = {name_of(each) for each in as_list(container.get("env"))}
        if names.ENV_LD_PRELOAD in env:
            yield (
                f"container {name}: on nodes with the setting preload=env the limiter's "
                f"{names.ENV_LD_PRELOAD} replaces its own"
            )
