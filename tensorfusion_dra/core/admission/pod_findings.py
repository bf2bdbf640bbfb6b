"""Findings about a pod, from its annotations, claim, workload and namespace.

`why` reports them of pods in the cluster or in a file, the webhook of pods that are created.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import dialects, pod_admission, pod_resources
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.admission.pod_request import REQUESTING_ANNOTATIONS
from tensorfusion_dra.core.finding import Finding, problem, warning
from tensorfusion_dra.core.kubernetes import resource_claims, review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    map_at,
    name_of,
)

Item = Mapping[str, Any]

ANNOTATIONS: Final = "annotations"
"""Subject of the findings about annotations that give the pod no GPU."""
CONTAINERS: Final = "containers"
"""Subject of the findings about claims that no container of the pod names."""
_MEANT: Final = frozenset(
    {*REQUESTING_ANNOTATIONS, names.ANNOTATION_TFLOPS_LIMIT, names.ANNOTATION_VRAM_LIMIT}
)
"""Annotations of a pod whose author wants a part of a GPU."""


def without_effect(pod: Item) -> Iterator[Finding]:
    """Yield why a pod without a claim gets no GPU, although its annotations mean one.

    Nothing enables DRA for it: neither its annotations nor a GPUPool. Or none of its annotations is
    known and one resembles a known one. Tensor Fusion itself serves pods with its label or
    scheduler.
    """
    annotations, labels = review.annotations_of(pod), map_at(pod, "metadata", "labels")
    is_off = annotations.get(names.ANNOTATION_DRA_ENABLED) == "false"
    scheduler = as_map(pod.get("spec")).get("schedulerName")
    is_served = labels.get(names.LABEL_TENSOR_FUSION_ENABLED) == "true"
    if is_off or is_served or scheduler == names.TENSOR_FUSION_SCHEDULER:
        return
    if named := [name for name in annotations if name in _MEANT]:
        yield problem(
            ANNOTATIONS,
            f"{named[0]} requests a GPU, but nothing enables DRA for the pod",
            expected=f"{names.ANNOTATION_DRA_ENABLED}: true, or a GPUPool that enables DRA",
            remedy=f'set the annotation {names.ANNOTATION_DRA_ENABLED}: "true"',
        )
        return
    misspelled = [text for text in pod_admission.of_names(annotations) if "did you mean" in text]
    if misspelled:
        yield problem(
            ANNOTATIONS,
            misspelled[0],
            expected="annotations that request a GPU",
            remedy=f"correct {misspelled[0].partition(': ')[0]}",
        )


def misplaced(workload: Item) -> Iterator[Finding]:
    """Yield the annotations of a workload itself, if the template of its pods has none of them."""
    path = ["spec", "jobTemplate"] if workload.get("kind") == "CronJob" else []
    path += ["spec", "template", "metadata", "annotations"]
    named = [name for name in review.annotations_of(workload) if name in _MEANT]
    if workload.get("kind") != "Pod" and named and not _MEANT & map_at(workload, *path).keys():
        metadata, where = workload["metadata"], ".".join(path)
        yield problem(
            f"{workload.get('kind')} {metadata.get('namespace')}/{metadata.get('name')}",
            f"has {named[0]} among its own annotations, which its pods do not get",
            expected=where,
            remedy=f"move {', '.join(named)} to {where}",
        )


def unnamed(pod: Item, entries: Collection[str]) -> Iterator[Finding]:
    """Yield each of a pod's claims of GPUs that no container names.

    The scheduler gives it devices, but the kubelet does not prepare it. It is a problem if the pod
    has no other claim of GPUs.

    Args:
        entries: Names of the pod's claims of GPUs, in its spec.resourceClaims.
    """
    used = {
        name_of(use)
        for _, container in resource_claims.containers_with_paths(pod)
        for use in as_list(as_map(container.get("resources")).get("claims"))
    }
    found = problem if used.isdisjoint(entries) else warning
    for entry in entries:
        if entry not in used:
            yield found(
                CONTAINERS,
                f"none of them names claim {entry}, so they get no GPU of it, and its share is "
                "lost",
                expected=f"{entry} in resources.claims of a container",
                remedy="name it in resources.claims of a container",
            )


def dialect_of(unknown: Collection[str]) -> Dialect | None:
    """Return the dialect that has most of these resources as words; None if none has one.

    Every system has nvidia.com/gpu.
    """
    counts = {
        dialect: sum(each.name in unknown for each in words if each.name != names.NVIDIA_GPU)
        for dialect, words in dialects.WORDS.items()
    }
    most = max(counts, key=lambda dialect: counts[dialect])
    return most if counts[most] else None


def mixed(pod: Item) -> Iterator[FieldError]:
    """Yield the first word of another system in a pod that asks for a GPU in this driver's as well.

    The webhook does not translate it, since annotations that request a GPU take precedence.
    """
    metadata = as_map(pod.get("metadata"))
    others = {
        name: text
        for name, text in review.annotations_of(pod).items()
        if not name.startswith(names.ANNOTATION_PREFIX)
    }
    plain = {**pod, "metadata": {**metadata, "annotations": others}}
    matches = dialects.translate(plain, list(Dialect)).matches
    if dialect := dialect_of([each.name for each in matches]):
        words = {word.name for word in dialects.WORDS[dialect]} - {names.NVIDIA_GPU}
        yield FieldError(
            next(each.path for each in matches if each.name in words),
            Reason.INVALID,
            f"found a word of {dialect} beside annotations or resources of "
            f"{names.TENSOR_FUSION_GROUP}, expected only one of the two: the webhook translates it "
            f"in pods without these, with {dialect} in webhook.dialects of the chart and the label "
            f"{names.LABEL_DIALECT}{dialect}=true on the namespace",
        )


def unserved(pods: Collection[Item], *, has_webhook: bool) -> Iterator[Finding]:
    """Yield the finding about stored pods whose resources the webhook did not replace by claims.

    They wait for an extended resource that no node has.
    """
    waiting = {
        f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}": found
        for pod in pods
        if (found := pod_resources.named(pod))
    }
    if waiting:
        name = next(iter(waiting.values()))[0]
        why = "did not replace it by a claim" if has_webhook else "is not installed"
        yield problem(
            f"extended resource {name}",
            f"no node has it, and the webhook {why}. These pods wait with Insufficient {name}: "
            f"{printable.first([*waiting])}",
            expected="the webhook, which replaces it in new pods of every namespace but "
            "kube-system and its own",
            remedy="install the webhook (webhook.enabled of the chart), or move the pod to a "
            "namespace that it serves; then delete the pod and create it again",
        )


def untranslated(pod: Item, dialect: Dialect, labels: Item | None, *, is_spoken: bool) -> Finding:
    """Return the finding about a pod with words of another system that nobody has translated.

    Args:
        labels: Those of its namespace; None if they are not known.
        is_spoken: True if the webhook translates this dialect.
    """
    label, namespace = f"{names.LABEL_DIALECT}{dialect}", as_map(pod["metadata"]).get("namespace")
    is_labelled = labels is not None and labels.get(label) == "true"
    steps = [] if is_spoken else [f"add {dialect} to webhook.dialects of the chart"]
    if not is_labelled:
        steps.append(f"kubectl label namespace {namespace} {label}=true")
    return problem(
        f"namespace {namespace}",
        f"the webhook did not translate the pod's words of {dialect}"
        + ("" if labels is None or is_labelled else f": the namespace has no label {label}=true"),
        expected=f"the label {label}=true, and {dialect} in webhook.dialects of the chart",
        remedy=", ".join(steps) or "check that the webhook runs (tensorfusion-dra doctor)",
    )


def outdated(stored: Item, current: Item) -> Iterator[Finding]:
    """Yield the finding about a claim that the webhook would fill in another way now.

    Its pod's annotations were edited since. Or its cards are shared by other amounts than it names,
    as a node started or stopped oversubscribing.

    Args:
        stored: The claim.
        current: The claim that the webhook would fill for the pod now.
    """
    current_values = _filled_in(current)
    differing = [name for name, had in _filled_in(stored).items() if had != current_values[name]]
    named, shared = _amounts_named(stored), _amounts_named(current)
    if differing:
        found = "was made before the pod's annotations were edited, and has the earlier "
        found, expected = found + differing[0], "what the annotations request now"
    elif named and named.isdisjoint(shared):
        expected = ", ".join(sorted(shared))
        found = (
            f"requests {', '.join(sorted(named))}, and the cards that it can get are shared by "
            f"{expected}: it takes the whole of what it does not name, or gets no card"
        )
    else:
        return
    yield warning(
        f"ResourceClaim {stored['metadata']['name']}",
        found,
        expected=expected,
        remedy="delete the pod and create it again: its claim does not change",
    )


def _amounts_named(claim: Item) -> set[str]:
    asked = resource_claims.requests(claim)
    return {name for each in asked for name in map_at(each, "capacity", "requests")}


def _filled_in(claim: Item) -> dict[str, object]:
    """Return the values that the webhook filled in, by their names for findings.

    Virtual and physical amounts have the same names.
    """
    annotations, asked = review.annotations_of(claim), []
    for each in resource_claims.requests(claim):
        amounts = map_at(each, "capacity", "requests")
        named = {name.removeprefix("virtual_"): text for name, text in amounts.items()}
        if (each.get("selectors"), named) not in asked:
            asked.append((each.get("selectors"), named))
    return {
        "number of GPUs": len(resource_claims.main_requests(claim)),
        "selector": [selectors for selectors, _ in asked],
        "amounts": [amounts for _, amounts in asked],
        "limits": {name: annotations.get(name) for name in names.SHARE_ANNOTATIONS},
    }
