"""The diagnosis of one pod: whether it can be scheduled now, what keeps it, and what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tensorfusion_dra.app.why import advice, answers, pod_claims
from tensorfusion_dra.app.why.observed import Observed
from tensorfusion_dra.app.why.pod_claims import Resolved
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import objects, pending
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tensorfusion_dra.scheduling import allocation, placement
from tensorfusion_dra.scheduling.node_clusters import NodeClusters
from tensorfusion_dra.scheduling.placement import NodeOutcome, Trial

Document = Mapping[str, Any]

_DONE: Final = frozenset({"Succeeded", "Failed"})
_CURED: Final = frozenset({Level.PROBLEM, Level.WARNING})
"""Levels of findings about the pod itself whose cure is among what helps."""


class State(StrEnum):
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
    """

    pod: str
    state: State
    answer: str
    helps: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    outcomes: Sequence[NodeOutcome] = field(default=())
    unchecked: Sequence[str] = ()


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
    if is_created and (node or phase in _DONE):
        findings = [*pending.deleted(pod), *pod_claims.of_bound(pod, observed)]
        answer = answers.bound(
            _name(pod), str(node or ""), str(phase or ""), _trouble(pod, observed), findings
        )
        return Diagnosis(
            pod=_name(pod),
            state=State.BOUND,
            answer=answer,
            helps=list(dict.fromkeys(finding.cure for finding in findings)),
            findings=findings,
        )
    resolved = pod_claims.resolve(pod, observed, is_created=is_created)
    found = resolved.findings
    # First, because it is why Kubernetes does not create a claim, in fewer words than the Event.
    found[:0] = pending.full_quotas(observed.quotas, resolved.future, created=is_created)
    found += pending.halted(resolved.pod)
    found += pending.other_scheduler(resolved.pod)
    if not observed.missing:
        class_names = [str(each["metadata"]["name"]) for each in observed.classes]
        found += pending.missing_classes(resolved.claims, class_names)
        found += pending.unknown_resources(resolved.pod, observed.classes, observed.nodes)
    return _tried(resolved, observed)


def _trouble(pod: Document, observed: Observed) -> str:
    """Return why the pod does not start on its node, as its Events say; "" if none says it."""
    if as_map(pod.get("status")).get("phase") != "Pending":
        return ""
    return pending.start_trouble(observed.events_of(pod))


def _tried(resolved: Resolved, observed: Observed) -> Diagnosis:
    """Return the diagnosis by a trial on all nodes."""
    clusters = NodeClusters(_cluster(observed, resolved))
    trial = Trial(pod=resolved.pod, claims=resolved.claims)
    can_try = resolved.is_complete and not observed.missing
    outcomes = placement.outcomes(trial, clusters, observed.nodes) if can_try else []
    fits = any(each.fits for each in outcomes) and not any(each.error for each in outcomes)
    name = _name(resolved.pod)
    looks_around = _needs_our_cards(resolved) and not observed.missing
    around = _slice_findings(observed) if looks_around else []
    helps = [each.cure for each in resolved.findings if each.cure and each.level in _CURED]
    if resolved.blocks:
        answer = answers.blocked(name, _problems(resolved), trial, outcomes)
    elif observed.missing:
        answer = answers.untried(name, observed.missing)
    elif fits:
        answer = answers.fits(name, outcomes, has_claims=bool(resolved.claims))
    else:
        answer = answers.unfit(name, trial, outcomes)
    if not fits and outcomes:
        helps += advice.of(trial, clusters, observed.nodes, outcomes)
    return Diagnosis(
        pod=name,
        state=State.FITS if fits and not resolved.blocks else State.WAITS,
        answer=answer,
        helps=list(dict.fromkeys(helps)),
        findings=[*resolved.findings, *around],
        outcomes=outcomes,
        unchecked=list(observed.unreadable),
    )


def _cluster(observed: Observed, resolved: Resolved) -> allocation.Cluster:
    """Return the cluster that the allocation searches."""
    found = allocation.cluster(
        slices=observed.slices, classes=observed.classes, claims=observed.claims
    )
    return allocation.Cluster(
        slices=found.slices,
        classes=found.classes,
        claims=(*found.claims, *resolved.future),
        tries_all_candidates=observed.tries_all_candidates,
    )


def _needs_our_cards(resolved: Resolved) -> bool:
    return any(names.DEVICE_CLASS in pending.class_names(claim) for claim in resolved.claims)


def _slice_findings(observed: Observed) -> list[Finding]:
    """Return the doctor's findings about this driver's slices, except that all is well."""
    ours = [each for each in observed.slices if each["spec"]["driver"] == names.DRIVER]
    nodes = [str(node["metadata"]["name"]) for node in observed.nodes]
    return [
        finding
        for finding in objects.slices_of_cluster(ours, nodes=nodes)
        if finding.level is not Level.OK
    ]


def _problems(resolved: Resolved) -> list[Finding]:
    return [finding for finding in resolved.findings if finding.level is Level.PROBLEM]


def _name(pod: Document) -> str:
    metadata = as_map(pod.get("metadata"))
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
