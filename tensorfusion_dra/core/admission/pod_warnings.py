"""What of a pod's share would surprise whoever wrote the pod."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.pod_admission import Placement, sharing
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

Pod = Mapping[str, Any]

READ: Final = frozenset(
    {
        names.ANNOTATION_DRA_ENABLED,
        names.ANNOTATION_TFLOPS_REQUEST,
        names.ANNOTATION_VRAM_REQUEST,
        names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
        names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
        names.ANNOTATION_GPU_COUNT,
        names.ANNOTATION_GPU_MODEL,
        names.ANNOTATION_GPUPOOL,
        names.ANNOTATION_CEL_EXPRESSION,
        names.ANNOTATION_INJECT_CONTAINER,
        names.ANNOTATION_DEDICATED_GPU,
        *names.SHARE_ANNOTATIONS,
    }
)

# Of Tensor Fusion's pkg/constants: what users write on pods that something else handles there.
_WITHOUT_EFFECT: Final = {
    "workload-profile": "its amounts are not read; name them as annotations",
    "disable-features": "features are those of the node's enforcer",
    "vendor": "the GPUs of this driver are NVIDIA's",
    "gpu-indices": "name a GPU by its uuid in dra-cel-expression",
    "partition-id": "cards are not partitioned",
    "container-gpu-count": "every container gets all GPUs of its pod",
}
_OTHERS: Final = frozenset(
    {
        *("is-local-gpu", "sidecar-worker", "embedded-worker", "dedicated-worker"),
        *("workload", "workload-mode", "worker-pod-template", "worker-name", "selected-workload"),
        *("enabled-replicas", "pending-owned-workload", "hourly-pricing", "eviction-protection"),
        *("autoscale", "autoscale-target", "auto-resources", "auto-replicas"),
        *("auto-scale-target-resource", "gpu-ids", "container-gpus", "index", "cluster"),
    }
)
"""What Tensor Fusion's own parts write and read; nothing to say about it."""


def warnings(
    pod: Pod, said: Mapping[str, str], wanted: PodRequest, placement: Placement
) -> list[str]:
    """One line each, short enough for the API server, which cuts at 256 characters."""
    return [
        *_of_names(said),
        *_of_amounts(wanted),
        *_of_placement(pod, wanted, placement),
        *_of_containers(pod, sharing(pod, wanted)),
    ]


def _of_names(said: Mapping[str, str]) -> Iterator[str]:
    known = {name.removeprefix(names.ANNOTATION_PREFIX) for name in READ}
    for annotation in said:
        short = annotation.removeprefix(names.ANNOTATION_PREFIX)
        if short in {annotation, *known, *_OTHERS} or short.startswith(("gang-", "pool-")):
            continue
        if short in _WITHOUT_EFFECT:
            yield f"{annotation}: has no effect in DRA mode: {_WITHOUT_EFFECT[short]}"
            continue
        close = difflib.get_close_matches(short, known, n=1)
        hint = f", is {names.ANNOTATION_PREFIX}{close[0]} meant?" if close else ""
        yield f"{annotation[:120]}: no annotation of that name is known{hint}"


def _of_amounts(wanted: PodRequest) -> Iterator[str]:
    if wanted.whole:
        if wanted.tflops or wanted.vram:
            is_shared = wanted.share.isolation is Isolation.SHARED
            reason = names.ANNOTATION_ISOLATION if is_shared else names.ANNOTATION_DEDICATED_GPU
            yield f"{reason}: the pod gets its GPUs alone, whatever it asks"
        return
    both = (
        (names.ANNOTATION_TFLOPS_REQUEST, wanted.tflops, "compute"),
        (names.ANNOTATION_VRAM_REQUEST, wanted.vram, "memory"),
    )
    for annotation, amount, what in both:
        if amount is None:
            yield f"{annotation}: not named, so the pod takes all {what} of its GPUs"
    if wanted.vram and wanted.vram.nano < MIB * NANO:
        yield f"{names.ANNOTATION_VRAM_REQUEST}: {wanted.vram} bytes, is {wanted.vram}Gi meant?"


def _of_placement(pod: Pod, wanted: PodRequest, placement: Placement) -> Iterator[str]:
    spec = as_map(pod.get("spec"))
    if not placement.pool and not wanted.expression:
        yield f"{names.ANNOTATION_GPUPOOL}: not named, so GPUs of every pool fit"
    if spec.get("schedulerName") == names.TENSOR_FUSION_SCHEDULER:
        yield (
            f"spec.schedulerName: in DRA mode {placement.scheduler} places the pod, "
            f"not {names.TENSOR_FUSION_SCHEDULER}"
            if placement.scheduler
            else f"spec.schedulerName: {names.TENSOR_FUSION_SCHEDULER} has to be one that "
            "allocates claims; where there is none, the pod stays Pending"
        )
    if spec.get("nodeName"):
        yield "spec.nodeName: the pod passes the scheduler by, and its claim is never allocated"
    for entry in map(as_map, as_list(spec.get("resourceClaims"))):
        template = entry.get("resourceClaimTemplateName")
        if name_of(entry) == names.POD_CLAIM and template != placement.template:
            found = template or entry.get("resourceClaimName")
            yield f"spec.resourceClaims: {names.POD_CLAIM} stays {found}, not {placement.template}"


def _of_containers(pod: Pod, chosen: frozenset[str]) -> Iterator[str]:
    spec = as_map(pod.get("spec"))
    for kind in ("initContainers", "containers"):
        for container in map(as_map, as_list(spec.get(kind))):
            name = name_of(container)
            if name not in chosen:
                if _asks_whole(container):
                    yield f"container {name}: {names.NVIDIA_GPU} was removed, and it gets no share"
                continue
            if as_map(container.get("securityContext")).get("privileged") is True:
                yield f"container {name}: is privileged, so it sees every GPU of its node"
            env = {name_of(each) for each in as_list(container.get("env"))}
            if names.ENV_LD_PRELOAD in env:
                yield f"container {name}: its {names.ENV_LD_PRELOAD} gives way to the limiter's"


def _asks_whole(container: Mapping[str, Any]) -> bool:
    resources = as_map(container.get("resources"))
    return any(names.NVIDIA_GPU in as_map(resources.get(kind)) for kind in ("requests", "limits"))
