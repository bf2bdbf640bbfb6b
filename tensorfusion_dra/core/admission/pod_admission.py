"""What becomes of a pod that asks for a share: checked, then given its claim (user guide, 1.1)."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

Json = dict[str, Any]

REFUSED_ENV: Final = frozenset(
    {names.ENV_TEST_MODE, *names.ENV_BYPASSES, *names.HAMI_CORE_BYPASSES}
)
"""Variables by which a container would get around its limits."""

_KINDS: Final = ("initContainers", "containers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a pod's share comes from.

    Attributes:
        pool: Its GPUPool; "" for none.
        template: The ResourceClaimTemplate, in the pod's namespace.
        scheduler: In place of Tensor Fusion's; "" leaves that one.
    """

    pool: str
    template: str
    scheduler: str


def errors(pod: Mapping[str, Any], wanted: PodRequest, *, takes_hard: bool) -> Iterator[FieldError]:
    """Yield every reason for which the pod cannot have its share.

    Args:
        takes_hard: Whether the pod may choose hard isolation.
    """
    labels = as_map(as_map(pod.get("metadata")).get("labels"))
    if labels.get(names.LABEL_TENSOR_FUSION_ENABLED) == "true":
        yield FieldError(
            f"metadata.labels[{names.LABEL_TENSOR_FUSION_ENABLED}]",
            Reason.FORBIDDEN,
            "found true, by which Tensor Fusion's own webhook and scheduler give the pod a GPU as "
            f"well, expected either: remove the label, or set {names.ANNOTATION_DRA_ENABLED} to "
            "false",
        )
    yield from _limit_errors(wanted)
    if wanted.share.isolation is Isolation.HARD and not takes_hard:
        where = pod_request.path_of(names.ANNOTATION_ISOLATION)
        yield FieldError(where, Reason.FORBIDDEN, f"found hard, expected {isolation.HARD_NEEDS}")
    every = [name_of(container) for _, container in _containers(pod)]
    for name in wanted.containers:
        if name not in every:
            text = f"found {name!r}, expected one of {', '.join(every)}"
            where = pod_request.path_of(names.ANNOTATION_INJECT_CONTAINER)
            yield FieldError(where, Reason.INVALID, text)
    chosen = sharing(pod, wanted)
    for path, container in _containers(pod):
        if name_of(container) not in chosen:
            continue
        yield from _partial_use(path, container, wanted)
        for index, variable in enumerate(as_list(container.get("env"))):
            switch = name_of(variable)
            if switch in REFUSED_ENV:
                text = f"found {switch}, expected no switch that turns the limiter off"
                yield FieldError(f"{path}.env[{index}].name", Reason.FORBIDDEN, text)


def _limit_errors(wanted: PodRequest) -> Iterator[FieldError]:
    """Limits below their requests, with which no node would prepare the claim."""
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
    """A container that names one request of the claim would get one of several GPUs."""
    uses = as_list(as_map(container.get("resources")).get("claims"))
    for index, use in enumerate(map(as_map, uses)):
        if wanted.count > 1 and use.get("name") == names.POD_CLAIM and use.get("request"):
            where = f"{path}.resources.claims[{index}].request"
            text = (
                f"found {str(use['request'])[:80]!r}, expected none: of {wanted.count} GPUs each "
                "has a request of its own, and a container gets all of them by the claim alone"
            )
            yield FieldError(where, Reason.INVALID, text)


def sharing(pod: Mapping[str, Any], wanted: PodRequest) -> frozenset[str]:
    """Names of the containers that get the share.

    Those that the pod names; else all its containers, and of its init containers those that ask
    for whole GPUs: most only prepare something, but one that looks for a GPU is to find it.
    """
    if wanted.containers:
        return frozenset(wanted.containers)
    return frozenset(
        name_of(container)
        for path, container in _containers(pod)
        if path.startswith("spec.containers") or _whole_gpus(container)
    )


def admitted(pod: Mapping[str, Any], wanted: PodRequest, placement: Placement) -> Json:
    """The pod with its claim, which its containers use, and its annotations in canonical form.

    The same pod again comes out as it is.
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
    for _, container in _containers(result):
        if _whole_gpus(container):
            for kind in ("requests", "limits"):
                _made(_made(container, "resources"), kind).pop(names.NVIDIA_GPU, None)
        if name_of(container) in chosen:
            _add_named(_made(container, "resources"), "claims", {"name": names.POD_CLAIM})
    return result


def _canonical(
    pod: Mapping[str, Any], wanted: PodRequest, placement: Placement, chosen: frozenset[str]
) -> dict[str, str]:
    """What the annotations say, spelled as the hypervisor and the node read it."""
    order = [name_of(container) for _, container in _containers(pod)]
    share = wanted.share
    said = {
        names.ANNOTATION_DRA_ENABLED: "true",
        names.ANNOTATION_GPU_COUNT: str(wanted.count),
        names.ANNOTATION_GPUPOOL: placement.pool,
        names.ANNOTATION_INJECT_CONTAINER: ",".join(name for name in order if name in chosen),
        names.ANNOTATION_TFLOPS_REQUEST: str(wanted.tflops or ""),
        names.ANNOTATION_VRAM_REQUEST: str(wanted.vram or ""),
        names.ANNOTATION_TFLOPS_LIMIT: str(share.tflops_limit or ""),
        names.ANNOTATION_VRAM_LIMIT: str(share.vram_limit or ""),
    }
    return {annotation: text for annotation, text in said.items() if text}


def _add_named(holder: Json, field: str, entry: Json) -> None:
    """The entry is in the list, unless one of its name is there already."""
    listed = as_list(holder.get(field))
    if not any(name_of(held) == entry["name"] for held in listed):
        holder[field] = [*listed, entry]


def _made(holder: Json, field: str) -> Json:
    """The object in a field, to be changed; made if there is none."""
    found = holder.get(field)
    if not isinstance(found, dict):
        found = holder[field] = {}
    return found


def _containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """Every container and its path, init containers first."""
    spec = as_map(pod.get("spec"))
    for kind in _KINDS:
        for index, container in enumerate(as_list(spec.get(kind))):
            if isinstance(container, dict):
                yield f"spec.{kind}[{index}]", container


def _whole_gpus(container: Mapping[str, Any]) -> bool:
    resources = as_map(container.get("resources"))
    return any(names.NVIDIA_GPU in as_map(resources.get(kind)) for kind in ("requests", "limits"))
