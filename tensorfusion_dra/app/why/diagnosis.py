"""The steps of `why`: read, then diagnose. Loaded only with the extra `cel`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.app.why import claims as resolving
from tensorfusion_dra.app.why import observed as reading
from tensorfusion_dra.app.why.claims import Resolved
from tensorfusion_dra.app.why.observed import Observed, Workload
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, Level, problem
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError, StatusError
from tensorfusion_dra.core.kubernetes import claim_devices
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tensorfusion_dra.scheduling import allocation, placement
from tensorfusion_dra.scheduling.placement import NodeClusters, NodeOutcome, Trial

Document = Mapping[str, Any]

_TRY_AGAIN: Final = "Correct what the message names; the controller tries again."
_MAX_PODS: Final = 50
"""Diagnose at most this many pods of a workload of which none waits."""
_REMEDIED: Final = frozenset({Level.PROBLEM, Level.WARNING})
"""Levels of findings about the pod itself whose remedy is among what helps."""


class PodState(StrEnum):
    """The answer in one word."""

    FITS = "fits"
    """A node has what the pod requests; the scheduler places it at its next try."""
    BOUND = "bound"
    """The pod has a node already, or is done."""
    WAITS = "waits"
    """The pod cannot be scheduled now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that `why` tells of a pod.

    Attributes:
        answer: One sentence.
        helps: What would help, the quickest first.
        findings: Faults that are not about free devices.
        outcomes: The nodes; empty if the pod was not tried on them.
        unchecked: What could not be read for want of a right.
        release: Release of Kubernetes by whose rules devices were allocated, such as 1.37.
    """

    pod: str
    state: PodState
    answer: str
    helps: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    outcomes: Sequence[NodeOutcome] = field(default=())
    unchecked: Sequence[str] = ()
    release: str = ""


def answer(api: Api, *, namespace: str, target: str, file: str | None) -> Diagnosis:
    """Return the diagnosis of a pod of the cluster, of a workload's pods, or of a file.

    Args:
        target: Name of a pod, or a workload such as ``deploy/train``.

    Raises:
        InputError: There is no such pod or workload, or an object is malformed.
        RetryableError: The API server did not answer, or the right to read the pod is missing.
    """
    lists = ClusterLists(api)
    try:
        if file is not None:
            pod, others = reading.read_file(file, namespace=namespace, name=target)
            cluster = reading.read(lists, str(pod["metadata"]["namespace"]))
            return diagnose(pod, reading.with_objects(cluster, others), is_created=False)
        kind, name = reading.kind_and_name(target)
        if kind == "Pod":
            found = reading.read_pod(lists, namespace=namespace, name=name)
            return diagnose(found, reading.read(lists, namespace, [found]))
        workload = reading.read_workload(lists, kind, namespace=namespace, name=name)
        return _of_workload(workload, reading.read(lists, namespace, workload.pods))
    except StatusError as error:
        if error.status != 403:
            raise
        raise RetryableError(f"{error}. {answers.ELSEWHERE}") from error


def _of_workload(found: Workload, cluster: Observed) -> Diagnosis:
    """Return the diagnosis of the pod that represents the others.

    That is one that waits; if none can be created, the pod of the template; else one with a fault.
    """
    failed = [
        problem(str(found), f"creates no more pods: {text}", expected="", remedy=_TRY_AGAIN)
        for text in filter(None, [found.failure])
    ]
    if found.waiting:
        waits = diagnose(found.waiting[0], cluster)
        count = f"{len(found.waiting)} of {len(found.pods)} pods of {found} wait."
        return replace(waits, answer=f"{count} {waits.answer}", findings=[*waits.findings, *failed])
    template = reading.pod_of(found.document)
    if template is not None and (failed or not found.pods):
        made = diagnose(template, cluster, is_created=False)
        has = "creates no more pods" if found.pods else "has no pods"
        text = f"{found} {has}: {found.no_pods}".removesuffix(".")
        if not failed:
            return replace(made, answer=f"{text}. One of its pods: {made.answer}")
        helps = made.helps or [_TRY_AGAIN]
        return replace(made, answer=f"{text}.", state=PodState.WAITS, helps=helps)
    every = [diagnose(pod, cluster) for pod in found.pods[:_MAX_PODS]]
    worst = next((each for each in every if each.findings), every[0])
    return replace(worst, answer=f"No pod of {found} waits. {worst.answer}")


def exit_code(found: Diagnosis) -> int:
    """Return 0 if the pod can be scheduled, or is and has no problem; else 1."""
    has_problem = any(finding.level is Level.PROBLEM for finding in found.findings)
    is_bad = found.state is PodState.BOUND and has_problem
    return 1 if found.state is PodState.WAITS or is_bad else 0


def diagnose(pod: Document, observed: Observed, *, is_created: bool = True) -> Diagnosis:
    """Return the diagnosis of a pod.

    Args:
        is_created: False for a pod from a file.

    Raises:
        InputError: The pod or an object of the cluster is malformed.
    """
    try:
        return _diagnosis(pod, observed, is_created=is_created)
    except (KeyError, TypeError, AttributeError, ValueError, DriverError) as error:
        raise InputError(
            f"pod {_name(pod)}: found {type(error).__name__} {error}, expected a pod, claims and "
            "slices as the API server shows them"
        ) from error


def _diagnosis(pod: Document, observed: Observed, *, is_created: bool) -> Diagnosis:
    node = as_map(pod.get("spec")).get("nodeName")
    phase = as_map(pod.get("status")).get("phase")
    if is_created and (node or phase in ("Succeeded", "Failed")):
        findings = list(resolving.of_bound(pod, observed))
        events = observed.events_of(pod) if phase == "Pending" else ()
        trouble = reading.newest_failure(
            event
            for event in events or ()
            if event.get("type") == "Warning"
            and as_map(event.get("source")).get("component") == "kubelet"
        )
        answer = answers.bound(_name(pod), str(node or ""), str(phase or ""), trouble, findings)
        return Diagnosis(
            pod=_name(pod),
            state=PodState.BOUND,
            answer=answer,
            helps=list(dict.fromkeys(finding.remedy for finding in findings)),
            findings=findings,
        )
    resolved = resolving.resolve(pod, observed, is_created=is_created)
    found = resolved.findings
    found += resolving.halted(resolved.pod)
    found += resolving.other_scheduler(resolved.pod)
    if not observed.missing:
        class_names = [str(each["metadata"]["name"]) for each in observed.classes]
        found += resolving.missing_classes(resolved.claims, class_names)
        found += resolving.unknown_resources(resolved.pod, observed.classes, observed.nodes)
    return _tried(resolved, observed)


def _tried(resolved: Resolved, observed: Observed) -> Diagnosis:
    """Return the diagnosis by a trial on all nodes."""
    cluster = allocation.cluster(
        slices=observed.slices,
        classes=observed.classes,
        claims=[*observed.claims, *resolved.future],
        release=observed.release,
    )
    clusters = NodeClusters(cluster)
    trial = Trial(pod=resolved.pod, claims=resolved.claims)
    can_try = resolved.is_complete and not observed.missing
    outcomes = placement.outcomes(trial, clusters, observed.nodes) if can_try else []
    fits = any(each.fits for each in outcomes) and not any(each.error for each in outcomes)
    name = _name(resolved.pod)
    findings = list(resolved.findings)
    ours = any(
        each.get("deviceClassName") == names.DEVICE_CLASS
        for claim in resolved.claims
        for each in claim_devices.requests(claim)
    )
    if ours and not observed.missing:
        slices = [each for each in observed.slices if each["spec"]["driver"] == names.DRIVER]
        published = objects.published(slices)
        findings += [each for each in published if each.level is not Level.OK]
    findings += resolving.pools(observed.pool_status)
    helps = [each.remedy for each in resolved.findings if each.remedy and each.level in _REMEDIED]
    if resolved.blocks:
        problems = [each for each in resolved.findings if each.level is Level.PROBLEM]
        answer = answers.blocked(name, problems, trial, outcomes)
    elif observed.missing:
        answer = answers.untried(name, observed.missing)
    elif fits:
        answer = answers.fits(name, outcomes, has_claims=bool(resolved.claims))
    else:
        answer = answers.unfit(name, trial, outcomes)
    if not fits and outcomes:
        helps += answers.helps(trial, clusters, observed.nodes, outcomes)
    return Diagnosis(
        pod=name,
        state=PodState.FITS if fits and not resolved.blocks else PodState.WAITS,
        answer=answer,
        helps=list(dict.fromkeys(helps)),
        findings=findings,
        outcomes=outcomes,
        unchecked=list(observed.unreadable),
        release=f"1.{observed.release}",
    )


def _name(pod: Document) -> str:
    metadata = as_map(pod.get("metadata"))
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
