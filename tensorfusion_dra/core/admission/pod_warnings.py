"""Warnings about a pod's share for effects that its author may not expect."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_containers
from tensorfusion_dra.core.admission.pod_admission import Placement, sharing
from tensorfusion_dra.core.admission.pod_request import REQUESTING_ANNOTATIONS, PodRequest
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

Pod = Mapping[str, Any]

KNOWN_ANNOTATIONS: Final = frozenset(
    {
        *REQUESTING_ANNOTATIONS,
        names.ANNOTATION_GPUPOOL,
        names.ANNOTATION_INJECT_CONTAINER,
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
    pod: Pod, annotations: Mapping[str, str], wanted: PodRequest, placement: Placement
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


def _of_placement(pod: Pod, wanted: PodRequest, placement: Placement) -> Iterator[str]:
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


def _of_containers(pod: Pod, chosen: frozenset[str]) -> Iterator[str]:
    for _, container in pod_containers.with_paths(pod):
        name = name_of(container)
        if name not in chosen:
            if pod_containers.requests_whole_gpus(container):
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
