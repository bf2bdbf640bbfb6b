"""Admission of a pod that requests a share: checks, claim and warnings (user guide, 1.1)."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.admission.pod_request import (
    PERCENT_OF,
    REQUESTING_ANNOTATIONS,
    PodRequest,
)
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes import resource_claims, review, untyped_json
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB, NANO
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    map_at,
    name_of,
    objects_at,
)

Json = dict[str, Any]

REFUSED_ENV: Final = frozenset({names.ENV_TEST_MODE, *names.ENV_BYPASSES})
"""Environment variables by which a container could evade Tensor Fusion's limiter."""
_NEAR: Final = 0.92
"""Similarity of an annotation of which two letters are wrong."""
_MOST_COMPARED: Final = 20
"""Unknown annotations that are compared with the known ones, which takes half a millisecond each. A
pod can have 22,000. The API server passes on warnings of 4 KiB together."""
MAX_CONTAINERS: Final = 500
"""Of a pod with a share. A kubelet starts them one by one, and a review of 15,000 takes half a
second."""
TOO_MANY_CONTAINERS: Final = FieldError(
    "spec.containers",
    Reason.TOO_MANY,
    f"found more, expected at most {MAX_CONTAINERS} containers in a pod with a share",
)
PARTITION_NEEDS: Final = "amounts of a single partition: CUDA shows a process no more than one"
"""What a pod with isolation `partitioned` may ask for."""
_AMOUNTS_OF: Final = ("requests", "limits")
KNOWN_ANNOTATIONS: Final = frozenset(
    {
        *REQUESTING_ANNOTATIONS,
        names.ANNOTATION_GPUPOOL,
        names.ANNOTATION_CEL_FILTER,
        names.ANNOTATION_GPUS_MATCH,
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
    "partition-id": "the scheduler chooses a partition by the pod's amounts",
    "container-gpu-count": "every container gets all GPUs of its pod",
    "enabled-replicas": "every pod with these annotations gets GPUs from this driver",
    "eviction-protection": "a PriorityClass or a PodDisruptionBudget protects the pod",
    **dict.fromkeys(
        (
            *("autoscale", "autoscale-target", "auto-resources", "auto-replicas"),
            "auto-scale-target-resource",
        ),
        "amounts stay as they are requested",
    ),
}
_GANG: Final = "the scheduler places pods one by one, a queue such as Kueue starts them together"
OTHERS: Final = frozenset(
    {
        *("is-local-gpu", "sidecar-worker", "embedded-worker", "dedicated-worker"),
        *("workload", "workload-mode", "worker-pod-template", "worker-name", "selected-workload"),
        *("pending-owned-workload", "hourly-pricing"),
        *("gpu-ids", "gpu-indices", "container-gpus", "index", "cluster"),
    }
)
"""Annotations that need no warning: Tensor Fusion's own components write and read them, or errors()
names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer:
    """Facts about a container that decide whether it gets the pod's share.

    Attributes:
        path: In the pod.
        env: Names of its variables.
        claims: Its uses of claims.
        takes_gpus: True if it requests or limits NVIDIA's extended resource.
        takes_cards: True if it limits this driver's, whole cards.
        has_share: True if it gets the share. If the pod names containers, these get it. Otherwise
            all do but the init containers, of which only those do that request whole GPUs: most
            only prepare something, but one that needs a GPU must find it.
    """

    path: str
    name: str
    env: tuple[str, ...]
    claims: tuple[Mapping[str, object], ...]
    takes_gpus: bool
    takes_cards: bool
    is_privileged: bool
    has_share: bool

    def errors(self, wanted: PodRequest, bypasses: Collection[str]) -> Iterator[FieldError]:
        """Yield why it cannot have the share; see errors() of the pod."""
        for index, use in enumerate(self.claims):
            # By a single request the container would get only one GPU.
            if wanted.count > 1 and use.get("name") == names.POD_CLAIM and use.get("request"):
                yield FieldError(
                    f"{self.path}.resources.claims[{index}].request",
                    Reason.INVALID,
                    f"found {str(use['request'])[:80]!r}, expected none: each of the "
                    f"{wanted.count} GPUs has its own request; a container gets all of them only "
                    "by the claim's name",
                )
        for index, switch in enumerate(self.env):
            if switch in REFUSED_ENV or switch in bypasses:
                yield FieldError(
                    f"{self.path}.env[{index}].name",
                    Reason.FORBIDDEN,
                    f"found {switch}, expected no switch that turns the limiter off",
                )


def containers(pod: Mapping[str, Any], wanted: PodRequest) -> tuple[PodContainer, ...]:
    """Return the pod's containers, init containers first; of too many, one more than allowed."""
    found, chosen = [], frozenset(wanted.containers)
    every = resource_claims.containers_with_paths(pod)
    for path, container in islice(every, MAX_CONTAINERS + 1):
        name, resources = str(container.get("name", "")), map_at(container, "resources")
        takes_gpus = any(names.NVIDIA_GPU in map_at(resources, kind) for kind in _AMOUNTS_OF)
        is_chosen = takes_gpus or path.startswith("spec.containers")
        found.append(
            PodContainer(
                path=path,
                name=name,
                env=tuple(str(each.get("name")) for each in objects_at(container, "env")),
                claims=tuple(objects_at(resources, "claims")),
                takes_gpus=takes_gpus,
                takes_cards=str(map_at(resources, "limits").get(names.RESOURCE_GPU, 0)) != "0",
                is_privileged=map_at(container, "securityContext").get("privileged") is True,
                has_share=name in chosen if chosen else is_chosen,
            )
        )
    return tuple(found)


def of_containers(equal_only: Sequence[str]) -> str:
    """Return what becomes of the limits of single containers.

    Args:
        equal_only: As of claim_admission.filled_by_container().
    """
    return (
        f"{names.ANNOTATION_CONTAINER_SHARES}: different shares get no GPU of a node with enforcer "
        f"{' or '.join(equal_only)}, which keep equal ones only; others keep the sum of the pod's "
        "containers on a card"
    )


def errors(
    pod: Mapping[str, Any],
    wanted: PodRequest,
    every: Sequence[PodContainer],
    *,
    hard_needs: str,
    bypasses: Collection[str],
) -> Iterator[FieldError]:
    """Yield every reason for which the pod cannot have its share.

    An annotation that differs from the name of an amount by one or two letters, or in case, is an
    error: a warning goes to the controller that creates the pod, and the pod would get all of what
    it left out. So is a limit below its request, since no node would prepare such a claim; and
    `gpu-indices`, which also says how many GPUs the pod gets.

    Args:
        every: The pod's containers.
        hard_needs: What isolation hard needs; "" if the pod may choose it.
        bypasses: Variables, beside REFUSED_ENV, by which a container could evade its limits.
    """
    if len(every) > MAX_CONTAINERS:
        yield TOO_MANY_CONTAINERS
        return
    metadata, spec = as_map(pod.get("metadata")), as_map(pod.get("spec"))
    annotations = review.annotations_of(pod)
    if not _has_claim(objects_at(spec, "resourceClaims")):
        yield from _named_twice(annotations, wanted)
    near = (*pod_request.AMOUNTS, names.ANNOTATION_GPU_COUNT)
    for annotation in _compared(annotations):
        for close in difflib.get_close_matches(annotation.lower(), near, n=1, cutoff=_NEAR):
            yield FieldError(
                pod_request.path_of(annotation),
                Reason.NOT_SUPPORTED,
                f"found an unknown annotation; did you mean {close}?",
            )
    if indices := annotations.get(names.MARK_GPU_INDICES):
        yield FieldError(
            pod_request.path_of(names.MARK_GPU_INDICES),
            Reason.FORBIDDEN,
            f"found {str(indices)[:80]!r}, expected none: DRA has no index of a GPU; select by "
            f"uuid in {names.ANNOTATION_CEL_FILTER}, and set {names.ANNOTATION_GPU_COUNT}",
        )
    if as_map(metadata.get("labels")).get(names.LABEL_TENSOR_FUSION_ENABLED) == "true":
        yield FieldError(
            f"metadata.labels[{names.LABEL_TENSOR_FUSION_ENABLED}]",
            Reason.FORBIDDEN,
            "found true, so Tensor Fusion's own webhook and scheduler give the pod a GPU as well, "
            f"expected only one of the two: remove the label, or set "
            f"{names.ANNOTATION_DRA_ENABLED} to false",
        )
    for one in wanted.of_containers or (wanted,):
        for annotation, text in one.below_request():
            yield FieldError(pod_request.path_of(annotation), Reason.INVALID, text)
    yield from _of_isolation(wanted, annotations, hard_needs)
    known = dict.fromkeys(container.name for container in every)
    if unknown := [repr(name[:80]) for name in wanted.containers if name not in known]:
        yield FieldError(
            pod_request.path_of(names.ANNOTATION_INJECT_CONTAINER),
            Reason.INVALID,
            f"found {printable.first(unknown)}, expected one of {printable.first([*known])}",
        )
    for container in every:
        if container.has_share:
            yield from container.errors(wanted, bypasses)
            if container.takes_cards:
                yield FieldError(
                    f"{container.path}.resources.limits[{names.RESOURCE_GPU}]",
                    Reason.FORBIDDEN,
                    "found whole GPUs beside "
                    + next(filter(annotations.__contains__, (*near, *REQUESTING_ANNOTATIONS)))
                    + ", expected one of the two",
                )


def _of_isolation(
    wanted: PodRequest, annotations: Mapping[str, str], hard_needs: str
) -> Iterator[FieldError]:
    """Yield why the pod cannot have its isolation, or what it asks for that no partition is."""
    if wanted.share.isolation is Isolation.HARD and hard_needs:
        yield FieldError(
            pod_request.path_of(names.ANNOTATION_ISOLATION),
            Reason.FORBIDDEN,
            f"found hard, expected {hard_needs}",
        )
    every = wanted.of_containers or (wanted,)
    unfit = {
        names.ANNOTATION_GPU_COUNT: wanted.count > 1,
        names.ANNOTATION_DEDICATED_GPU: any(each.whole for each in every),
        **{percentage: True for each in every for percentage in each.percentages},
    }
    for annotation, is_found in unfit.items():
        if is_found and wanted.is_partitioned:
            is_of_pod = annotation in annotations
            yield FieldError(
                pod_request.path_of(annotation if is_of_pod else names.ANNOTATION_CONTAINER_SHARES),
                Reason.INVALID,
                f"found {annotations.get(annotation, annotation)[:80]!r} beside isolation "
                f"partitioned, expected {PARTITION_NEEDS}",
            )


def priority_class(pod: Mapping[str, Any], wanted: PodRequest) -> str:
    """Return the PriorityClass that Tensor Fusion gives to a pod which names none; "" for none."""
    is_named = as_map(pod.get("spec")).get("priorityClassName")
    return "" if is_named else names.QOS_PRIORITY_CLASSES.get(wanted.share.qos or "", "")


def _has_claim(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if the claims of a pod have the one that the webhook adds."""
    return any(each.get("name") == names.POD_CLAIM for each in entries)


def _named_twice(annotations: Mapping[str, str], wanted: PodRequest) -> Iterator[FieldError]:
    """Yield an error for each percentage beside an amount, which would take precedence.

    An admitted pod has both: its percentages, and the amounts computed from them.
    """
    limit = names.ANNOTATION_TFLOPS_LIMIT, names.ANNOTATION_COMPUTE_PERCENT_REQUEST
    for amount, percent in () if wanted.whole else (*PERCENT_OF.items(), limit):
        if all(annotations.get(name, "0") != "0" for name in (amount, percent)):
            yield FieldError(
                pod_request.path_of(percent),
                Reason.INVALID,
                f"found {annotations[percent][:80]!r} beside {amount}, expected one of the two",
            )


def admitted(
    pod: Mapping[str, Any],
    wanted: PodRequest,
    every: Sequence[PodContainer],
    *,
    pool: str,
    template: str,
    scheduler: str,
    priority: str = "",
    names_containers: bool = False,
) -> Json:
    """Return the pod with its claim, which its containers use, and canonical annotations.

    The annotations are in the spelling that the hypervisor and the node read. A pod that was
    admitted before is returned unchanged.

    Args:
        every: The pod's containers.
        pool: GPUPool of the pod; "" for none.
        template: Name of the ResourceClaimTemplate, in the pod's namespace.
        scheduler: Scheduler that replaces Tensor Fusion's; "" keeps that one.
        priority: PriorityClass of the pod; "" keeps the pod's own.
        names_containers: True to tell each container its name, which Tensor Fusion's limiter needs.
    """
    result: Json = untyped_json.copied(dict(pod))
    share = wanted.share
    canonical = {
        names.ANNOTATION_DRA_ENABLED: "true",
        names.ANNOTATION_GPU_COUNT: str(wanted.count),
        names.ANNOTATION_GPUPOOL: pool,
        names.ANNOTATION_INJECT_CONTAINER: ",".join(each.name for each in every if each.has_share),
    }
    amounts = wanted.amounts()
    of_pod = {
        names.ANNOTATION_TFLOPS_REQUEST: str(amounts.get(names.CAPACITY_TFLOPS, "")),
        names.ANNOTATION_VRAM_REQUEST: str(amounts.get(names.CAPACITY_VRAM, "")),
        names.ANNOTATION_TFLOPS_LIMIT: str(share.tflops_limit or ""),
        names.ANNOTATION_VRAM_LIMIT: str(share.vram_limit or ""),
    }
    annotations = _made(_made(result, "metadata"), "annotations")
    if not wanted.of_containers:
        canonical |= of_pod
    annotations.update({annotation: text for annotation, text in canonical.items() if text})
    spec = _made(result, "spec")
    if scheduler and spec.get("schedulerName") == names.TENSOR_FUSION_SCHEDULER:
        spec["schedulerName"] = scheduler
    if priority:
        spec["priorityClassName"] = priority
        # What Kubernetes has filled in for no class; it refuses a pod whose class differs from it.
        for filled in ("priority", "preemptionPolicy"):
            spec.pop(filled, None)
    claim = {"name": names.POD_CLAIM}
    _add_named(spec, "resourceClaims", {**claim, "resourceClaimTemplateName": template})
    found = resource_claims.containers_with_paths(result)
    for known, (_, container) in zip(every, found, strict=True):
        if known.takes_gpus:
            for kind in _AMOUNTS_OF:
                _made(_made(container, "resources"), kind).pop(names.NVIDIA_GPU, None)
        if known.has_share:
            used = [
                {"request": each.containers[0]}
                for each in wanted.of_containers
                if known.name in each.containers
            ]
            _add_named(_made(container, "resources"), "claims", {**claim, **dict(*used)})
            if names_containers:
                variable = {"name": names.ENV_CONTAINER_NAME, "value": known.name}
                _add_named(container, "env", variable)
    return result


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


def warnings(
    pod: Mapping[str, Any],
    several: Sequence[PodRequest],
    every: Sequence[PodContainer],
    *,
    template: str,
    scheduler: str,
) -> Iterator[str]:
    """Yield the warnings, one line each; the API server truncates them at 256 characters.

    Args:
        several: The request of each container with a share of its own, or of the pod.
        every: The pod's containers.
        template, scheduler: As of admitted().
    """
    annotations = review.annotations_of(pod)
    yield from of_names(annotations)
    spec = as_map(pod.get("spec"))
    claims = objects_at(spec, "resourceClaims")
    as_typed = names.ANNOTATION_VRAM_REQUEST in annotations and not _has_claim(claims)
    for wanted in several:
        yield from _of_amounts(wanted, annotations, as_typed=as_typed)
    if spec.get("schedulerName") == names.TENSOR_FUSION_SCHEDULER:
        yield (
            f"spec.schedulerName: in DRA mode {scheduler} places the pod, "
            f"not {names.TENSOR_FUSION_SCHEDULER}"
            if scheduler
            else f"spec.schedulerName: {names.TENSOR_FUSION_SCHEDULER} must be a scheduler that "
            "allocates claims; otherwise the pod stays Pending"
        )
    if spec.get("nodeName"):
        yield "spec.nodeName: the pod bypasses the scheduler, so its claim is never allocated"
    for entry in claims:
        named = entry.get("resourceClaimTemplateName")
        if entry.get("name") == names.POD_CLAIM and named != template:
            kept = named or entry.get("resourceClaimName")
            yield f"spec.resourceClaims: {names.POD_CLAIM} keeps {kept} instead of {template}"
    for container in every:
        if not container.has_share:
            if container.takes_gpus:
                yield (
                    f"container {container.name}: {names.NVIDIA_GPU} was removed; it gets no share"
                )
            continue
        if container.is_privileged:
            yield f"container {container.name}: is privileged, so it sees every GPU of its node"
        if names.ENV_LD_PRELOAD in container.env:
            yield (
                f"container {container.name}: on nodes with the setting preload=env the limiter's "
                f"{names.ENV_LD_PRELOAD} replaces its own"
            )


def _compared(annotations: Mapping[str, str]) -> list[str]:
    """Return unknown annotations to compare, first those with Tensor Fusion's name."""
    found = [annotation for annotation in annotations if annotation not in KNOWN_ANNOTATIONS]
    found.sort(key=lambda each: "fusion" not in each.partition("/")[0].lower())
    return found[:_MOST_COMPARED]


def _is_like_ours(group: str) -> bool:
    ours = names.ANNOTATION_PREFIX.removesuffix("/")
    is_as_long = abs(len(group) - len(ours)) <= len("-.")
    return is_as_long and difflib.SequenceMatcher(None, group.lower(), ours).ratio() >= _NEAR


def of_names(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning of each annotation without effect that is Tensor Fusion's, or almost."""
    known = [name.removeprefix(names.ANNOTATION_PREFIX) for name in KNOWN_ANNOTATIONS]
    for annotation in _compared(annotations):
        group, slash, short = annotation.partition("/")
        if not (slash and _is_like_ours(group)):
            continue
        short = short.lower()
        if annotation == names.ANNOTATION_PREFIX + short:
            if short in OTHERS or short.startswith("pool-"):
                continue
            if text := _GANG if short.startswith("gang-") else WITHOUT_EFFECT.get(short, ""):
                yield f"{annotation}: has no effect in DRA mode: {text}"
                continue
        # The part that an amount is of, without request or limit, is the request.
        is_request = f"{short}-request" in known
        close = [f"{short}-request"] if is_request else difflib.get_close_matches(short, known, n=1)
        hint = f"; did you mean {names.ANNOTATION_PREFIX}{close[0]}?" if close else ""
        yield f"{annotation[:120]}: unknown annotation{hint}"


def _of_amounts(
    wanted: PodRequest, annotations: Mapping[str, str], *, as_typed: bool
) -> Iterator[str]:
    """Yield the warnings of amounts.

    Args:
        as_typed: False if the annotations have the amounts rounded up, as of an admitted pod.
    """
    if wanted.whole:
        if wanted.tflops or wanted.vram:
            reason = names.ANNOTATION_DEDICATED_GPU
            if wanted.share.isolation is Isolation.SHARED:
                reason = names.ANNOTATION_ISOLATION
            yield f"{reason}: the pod gets whole GPUs; its amounts are ignored"
        return
    for annotation, amount, what in (
        (names.ANNOTATION_TFLOPS_REQUEST, wanted.tflops, "compute"),
        (names.ANNOTATION_VRAM_REQUEST, wanted.vram, "memory"),
    ):
        if amount is None:
            yield f"{annotation}: not set, so the pod takes all {what} of its GPUs"
    if wanted.vram and wanted.vram.nano < MIB * NANO:
        text = annotations.get(names.ANNOTATION_VRAM_REQUEST, str(wanted.vram))
        # Elsewhere 16384m is MiB; in Kubernetes m is a thousandth.
        number = text.removesuffix("m")
        meant = ", expected an amount such as 16Gi"
        if as_typed and number.replace(".", "").isdigit():
            is_mib = number != text or float(number) >= GIB // MIB
            meant = f"; did you mean {number}{'Mi' if is_mib else 'Gi'}?"
        found = f"{text} is {wanted.vram.ceil()} bytes"
        yield f"{names.ANNOTATION_VRAM_REQUEST}: {found}{meant}"
