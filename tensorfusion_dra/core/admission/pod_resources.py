"""Amounts in the resources of containers, read as the annotations that mean the same.

    containers:                              tensor-fusion.ai/vram-request: 16Gi
    - name: train                            tensor-fusion.ai/tflops-request: "100"
      resources:                             tensor-fusion.ai/gpu-count: "2"
        limits:                     ->       tensor-fusion.ai/inject-container: train
          tensor-fusion.ai/vram: 16Gi
          tensor-fusion.ai/tflops: "100"
          tensor-fusion.ai/gpu: "2"

The webhook replaces the resources of a new pod by the annotations, and then admits it like any pod
that has them. Several containers become `container-shares`. Whoever reads a Job's template, such as
Kueue, still finds the resources there.

Kubernetes validates a pod after its webhooks, when these resources are gone. So the rules of
extended resources are checked here: whole numbers, limits, and requests that equal them
(pkg/apis/core/validation). The API server refuses a Job's template for the same reasons.

Resources say all that a queue has to charge. Annotations may add what is no amount, such as a
model, and limits above the amounts. Annotations that request amounts themselves are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import dialects, pod_admission, pod_request
from tensorfusion_dra.core.admission.dialects import Amounts
from tensorfusion_dra.core.admission.pod_request import LIKE_MEMORY
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes import quantity, resource_claims, review, untyped_json
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.quantity import NANO
from tensorfusion_dra.core.kubernetes.untyped_json import as_map, map_at, name_of

Json = dict[str, Any]
Item = Mapping[str, Any]

AMOUNTS: Final = {
    annotation.removesuffix("-request"): annotation
    for annotation in (
        names.ANNOTATION_TFLOPS_REQUEST,
        names.ANNOTATION_VRAM_REQUEST,
        names.ANNOTATION_COMPUTE_PERCENT_REQUEST,
        names.ANNOTATION_VRAM_PERCENT_REQUEST,
    )
}
"""Resources that are an amount of each GPU, and the annotation that means the same."""
_ANNOTATION_OF: Final = {**AMOUNTS, names.RESOURCE_GPU: names.ANNOTATION_GPU_COUNT}
_PERCENT_OF: Final = {
    "tensor-fusion.ai/tflops": "tensor-fusion.ai/compute-percent",
    "tensor-fusion.ai/vram": "tensor-fusion.ai/vram-percent",
}
_COMPUTE, _MEMORY = map(frozenset, _PERCENT_OF.items())
_LIMITED: Final = {
    names.ANNOTATION_TFLOPS_LIMIT: _COMPUTE,
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT: _COMPUTE,
    names.ANNOTATION_VRAM_LIMIT: _MEMORY,
}
"""Annotations of limits, with the resources of which a container needs one: a limit without an
amount would be the request as well."""
_SAME: Final = (
    *AMOUNTS.values(),
    names.ANNOTATION_GPU_COUNT,
    names.ANNOTATION_DEDICATED_GPU,
    names.ANNOTATION_CONTAINER_SHARES,
    names.ANNOTATION_INJECT_CONTAINER,
)
"""Annotations that say the same as resources, or contradict them."""
_UNSET: Final = frozenset({"", "0", "false"})
_OF_OTHERS: Final = (names.NVIDIA_GPU, "nvidia.com/vgpu-", "nvidia.com/mig-", "amd.com/gpu")
"""Beginnings of the resources by which other systems give GPUs."""
_KINDS: Final = ("limits", "requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfResources:
    """A pod whose resources were read.

    Attributes:
        pod: The pod with annotations in place of its resources; unchanged if it names no amount.
        errors: What is wrong with its resources.
    """

    pod: Item
    errors: tuple[FieldError, ...] = ()


def named(pod: Item, *, with_zeros: bool = False) -> list[str]:
    """Return the resources of a pod's containers that are amounts of a GPU, each once.

    Args:
        with_zeros: Return those with the value 0 as well, which ask for nothing.
    """
    every = (
        name
        for _, container in resource_claims.containers_with_paths(pod)
        for kind in _KINDS
        for name, text in map_at(container, "resources", kind).items()
        if with_zeros or str(text) != "0"
    )
    return [name for name in dict.fromkeys(every) if name in AMOUNTS]


def renamed(text: str, pod: Item) -> str:
    """Return a text with the pod's resources in place of the annotations that they became."""
    for resource, annotation in _ANNOTATION_OF.items():
        if annotation not in review.annotations_of(pod):
            text = text.replace(
                pod_request.path_of(annotation), f"spec.containers[*].resources.limits[{resource}]"
            ).replace(annotation, resource)
    return text


def read(pod: Item) -> OfResources:
    """Return the pod with annotations in place of its resources, or the errors in these resources.

    A container without amounts keeps `tensor-fusion.ai/gpu`, Kubernetes' extended resource for
    whole cards. An amount of 0 counts as absent.
    """
    amounts, annotations = named(pod, with_zeros=True), review.annotations_of(pod)
    is_partitioned = annotations.get(names.ANNOTATION_ISOLATION) == Isolation.PARTITIONED
    of_isolation = tuple(_without_partition(pod, amounts)) if is_partitioned else ()
    if of_isolation or not amounts:
        return OfResources(pod=pod, errors=of_isolation)
    result: Json = untyped_json.copied(dict(pod))
    errors, asked = list[FieldError](), dict[str, Amounts]()
    every = list(resource_claims.containers_with_paths(result))
    if len(every) > pod_admission.MAX_CONTAINERS:
        return OfResources(pod=pod, errors=(pod_admission.TOO_MANY_CONTAINERS,))
    for path, container in every:
        where = f"{path}.resources.limits"
        of_container, found_errors = _of_container(
            where, container, amounts[0], is_partitioned=is_partitioned
        )
        errors += found_errors
        if of_container:
            asked[name_of(container)] = of_container
    if asked and not errors:
        errors += _conflicts(annotations, asked)
    if asked and not errors:
        try:
            found = dialects.of_containers(pod, asked, dict)
        except InputError as error:
            errors.append(FieldError("spec.containers", Reason.INVALID, f"{amounts[0]}: {error}"))
        else:
            result.setdefault("metadata", {})["annotations"] = {
                names.ANNOTATION_DRA_ENABLED: "true",
                **annotations,
                **found,
            }
    return OfResources(pod=pod if errors else result, errors=tuple(errors))


def written(pod: Item, annotations: Amounts) -> tuple[dict[str, Amounts], Amounts]:
    """Return annotations as resources of containers, and the annotations that are still needed.

    Resources cannot say fractions of a unit, whole cards, or limits of single containers. Then no
    resources are returned, and all of the annotations.

    Args:
        pod: The pod that the annotations are for.
        annotations: Those of a translated pod.
    """
    text = annotations.get(names.ANNOTATION_CONTAINER_SHARES, "{}")
    shares = as_map(untyped_json.parse(text.encode()))
    if not shares:
        of_pod = {
            name.removeprefix(names.ANNOTATION_PREFIX): text for name, text in annotations.items()
        }
        shares = dict.fromkeys(annotations[names.ANNOTATION_INJECT_CONTAINER].split(","), of_pod)
    asked: dict[str, Amounts] = {}
    rest = {name: text for name, text in annotations.items() if name not in _SAME}
    del rest[names.ANNOTATION_DRA_ENABLED]
    for container, found in shares.items():
        share = as_map(shares[found] if isinstance(found, str) else found)
        texts = {
            name: str(share.get(becomes.removeprefix(names.ANNOTATION_PREFIX), ""))
            for name, becomes in _ANNOTATION_OF.items()
        }
        if LIKE_MEMORY in texts.values():
            rest[names.ANNOTATION_COMPUTE_PERCENT_REQUEST] = LIKE_MEMORY
        if texts[names.RESOURCE_GPU] == "1":
            del texts[names.RESOURCE_GPU]
        asked[container] = {
            name: text for name, text in texts.items() if text not in {"", LIKE_MEMORY}
        }
    made: Json = untyped_json.copied(dict(pod))
    made["metadata"] = {"annotations": rest}
    for _, each in resource_claims.containers_with_paths(made):
        each["resources"] = {"limits": asked.get(name_of(each), {})}
    again = pod_request.parse(review.annotations_of(read(made).pod))
    return (asked, rest) if again == pod_request.parse(annotations) else ({}, annotations)


def _of_container(
    where: str, container: Json, amount_of_pod: str, *, is_partitioned: bool
) -> tuple[Amounts, list[FieldError]]:
    """Remove the resources from a container; return their annotations, and their errors.

    Args:
        where: Path of its limits.
        amount_of_pod: An amount that the pod names, for the text of an error.
        is_partitioned: True if the pod asks for partitions.
    """
    resources = map_at(container, "resources")
    given = {kind: map_at(resources, kind) for kind in _KINDS}
    limits, requests = given.values()
    every = {**limits, **requests}
    errors = [_beside(where, name, amount_of_pod) for name in every if name.startswith(_OF_OTHERS)]
    own = {
        name: (limits.get(name), requests.get(name))
        for name in every
        if name.startswith(names.ANNOTATION_PREFIX)
        and not name.startswith(names.TENSOR_FUSION_INDEX)
    }
    if own.keys() <= {names.RESOURCE_GPU}:
        if "0" in map(str, own.get(names.RESOURCE_GPU, ())):
            # A queue multiplies the amounts of the pod by it, and would charge nothing.
            text = f"found 0 beside {amount_of_pod} in the pod, expected at least 1 or none"
            errors.append(FieldError(f"{where}[{names.RESOURCE_GPU}]", Reason.INVALID, text))
        return {}, errors
    texts = {
        name: _refusal(name, *each)
        or (is_partitioned and _unfit_for_partition(name, each[0]))
        or ""
        for name, each in own.items()
    }
    errors += [
        FieldError(f"{where}[{name}]", Reason.INVALID, text) for name, text in texts.items() if text
    ]
    errors += [
        _beside(where, percent, amount)
        for amount, percent in _PERCENT_OF.items()
        if {amount, percent} <= own.keys()
    ]
    for kind, listed in given.items():
        if listed:
            container["resources"][kind] = {
                name: text for name, text in listed.items() if name not in own
            }
    found = {
        _ANNOTATION_OF[name]: str(limit)
        for name, (limit, _) in own.items()
        if not texts[name] and quantity.parse(limit).nano
    }
    return found, errors


def _beside(where: str, name: str, other: str) -> FieldError:
    text = f"found it beside {other}, expected one of the two"
    return FieldError(f"{where}[{name}]", Reason.FORBIDDEN, text)


def _refusal(name: str, limit: object, request: object) -> str:
    """Return why a container cannot have this resource; "" if it can."""
    if name not in _ANNOTATION_OF:
        return f"found an unknown resource, expected one of {', '.join(_ANNOTATION_OF)}"
    if limit is None:
        return "found a request without a limit, expected both to be equal"
    try:
        amount = quantity.parse(limit)
        if request is not None and quantity.parse(request) != amount:
            return f"found {limit} and a request of {request}, expected both to be equal"
    except DriverError as error:
        return str(error)
    if amount.nano % NANO or amount.nano < 0:
        return f"found {limit}, expected a whole number, as of every extended resource"
    return pod_request.refusal(_ANNOTATION_OF[name], str(limit))


def _without_partition(pod: Item, amounts: Sequence[str]) -> Iterator[FieldError]:
    """Yield the errors of a pod with isolation partitioned that asks for whole cards or nothing.

    Args:
        amounts: Those that its resources name.
    """
    needs = f"expected {pod_admission.PARTITION_NEEDS}"
    whole = [
        path
        for path, container in resource_claims.containers_with_paths(pod)
        if map_at(container, "resources", "limits").keys() & _ANNOTATION_OF.keys()
        == {names.RESOURCE_GPU}
    ]
    for path in whole:
        where = f"{path}.resources.limits[{names.RESOURCE_GPU}]"
        text = f"found whole GPUs beside isolation partitioned, {needs}"
        yield FieldError(where, Reason.INVALID, text)
    claims = map_at(pod, "spec").get("resourceClaims")
    if not (whole or amounts or claims or pod_request.requests_gpu(review.annotations_of(pod))):
        where = pod_request.path_of(names.ANNOTATION_ISOLATION)
        yield FieldError(where, Reason.INVALID, f"found partitioned alone, {needs}")


def _unfit_for_partition(name: str, limit: object) -> str:
    """Return why a partition cannot be asked for by a percentage or a count; "" if it can."""
    most = {names.RESOURCE_GPU: 1, **dict.fromkeys(_PERCENT_OF.values(), 0)}
    if name not in most or quantity.parse(limit).nano <= most[name] * NANO:
        return ""
    return f"found {limit} beside isolation partitioned, expected {pod_admission.PARTITION_NEEDS}"


def _conflicts(
    annotations: Mapping[str, str], asked: Mapping[str, Amounts]
) -> Iterator[FieldError]:
    """Yield the annotations that a pod cannot have beside its containers' resources.

    Compute that follows memory (`compute-percent-request: memory`) is no conflict, unless a
    container names compute.
    """
    named_by = {
        container: [name for name, becomes in _ANNOTATION_OF.items() if becomes in amounts]
        for container, amounts in asked.items()
    }
    container, (first, *_) = next(iter(named_by.items()))
    follows = annotations.get(names.ANNOTATION_COMPUTE_PERCENT_REQUEST) == LIKE_MEMORY and all(
        map(_COMPUTE.isdisjoint, named_by.values())
    )
    counts = {amounts.get(names.ANNOTATION_GPU_COUNT, "1") for amounts in asked.values()}
    same = {name: text for name, text in annotations.items() if name in _SAME}
    if follows:
        del same[names.ANNOTATION_COMPUTE_PERCENT_REQUEST]
    if {same.get(names.ANNOTATION_GPU_COUNT)} == counts == {"1"}:
        del same[names.ANNOTATION_GPU_COUNT]
    expected = {name: "only one of the two" for name, text in same.items() if text not in _UNSET}
    if annotations.get(names.ANNOTATION_DRA_ENABLED) == "false":
        expected[names.ANNOTATION_DRA_ENABLED] = "only one of the two"
    if annotations.get(names.ANNOTATION_ISOLATION) == Isolation.SHARED:
        expected[names.ANNOTATION_ISOLATION] = "another one: it gives whole GPUs, without limits"
    for limit, either in _LIMITED.items():
        without = [one for one, each in named_by.items() if either.isdisjoint(each)]
        is_set = annotations.get(limit, "0") not in _UNSET
        if is_set and without and not (follows and either is _COMPUTE):
            expected[limit] = (
                f"{' or '.join(sorted(either))} in the resources of container "
                f"{printable.first(without)}, since a limit alone is the request as well"
            )
    for name, text in expected.items():
        yield FieldError(
            pod_request.path_of(name),
            Reason.FORBIDDEN,
            f"found {annotations[name][:80]!r} beside {first} in the resources of container "
            f"{container}, expected {text}",
        )
