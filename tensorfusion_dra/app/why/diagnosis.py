"""The steps of `why`: read, find the pod's claims by the webhook's rules, and diagnose."""

import copy
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorfusion_dra.app.doctor import kubernetes, objects
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.app.why import observed as reading
from tensorfusion_dra.app.why.answers import WEBHOOK, Diagnosis, PodState
from tensorfusion_dra.app.why.observed import Observed, Workload
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import (
    cards,
    claim_admission,
    dialects,
    pod_findings,
    pod_request,
    pod_resources,
)
from tensorfusion_dra.core.admission.cards import Cards
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError, StatusError
from tensorfusion_dra.core.finding import Finding, Level, not_checked, note, problem, warning
from tensorfusion_dra.core.kubernetes import resource_claims, review
from tensorfusion_dra.core.kubernetes.device_rules import GATE_CONSUMABLE_CAPACITY
from tensorfusion_dra.core.kubernetes.review import PASSED, Decision, Review
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of
from tensorfusion_dra.scheduling import allocation, cel_evaluation, placement
from tensorfusion_dra.scheduling.placement import NodeClusters, Trial
from tensorfusion_dra.webhook.admission import AdmissionRules

Document = Mapping[str, Any]

_SCHEDULER: Final = "default-scheduler"
_SAID_OF: Final = {
    device_status.CONDITION_ENFORCED: "its limits are not enforced on",
    device_status.CONDITION_READY: "it is not ready on",
}
_UNANSWERED: Final = re.compile(r'failed calling webhook "([^"]+)"')
"""What the API server says of a webhook that does not answer."""
_NEED_CEL: Final = "free cards and the types of selectors"
_MAX_PODS: Final = 50
"""Diagnose at most this many pods of a workload of which none waits."""


@dataclass(slots=True, kw_only=True)
class Resolved:
    """A pod as it will be scheduled.

    Attributes:
        stored: Those of its claims that exist.
        future: Its other claims, as they will be created.
        is_complete: False if a claim is not known at all.
    """

    pod: Document
    stored: list[Document] = field(default_factory=list)
    future: list[Document] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    is_complete: bool = True

    @property
    def claims(self) -> list[Document]:
        """All of its claims."""
        return [*self.stored, *self.future]

    @property
    def problems(self) -> list[Finding]:
        """The findings that keep the pod from being scheduled, whatever is free."""
        return [finding for finding in self.findings if finding.level is Level.PROBLEM]


def answer(
    api: Api, *, namespace: str, target: str, file: str | None, release: int | None = None
) -> Diagnosis:
    """Return the diagnosis of a pod of the cluster, of a workload's pods, or of a file.

    Args:
        target: Name of a pod, also with its namespace, or a workload such as ``deploy/train``.
        release: Minor version of Kubernetes whose scheduler allocates; None for the cluster's.

    Raises:
        InputError: There is no such pod or workload, or an object is malformed.
        RetryableError: The API server did not answer, or the right to read the pod is missing.
    """
    lists = ClusterLists(api, release=release)
    try:
        if file is not None:
            pod, owner, others = reading.read_file(file, namespace=namespace, name=target)
            cluster = reading.read(lists, str(pod["metadata"]["namespace"]))
            cluster = reading.with_objects(cluster, others)
            return _with_misplaced(owner, diagnose(pod, cluster, is_created=False))
        kind, namespace, name = reading.named(target, namespace)
        if kind == "Pod":
            pod = reading.read_pod(lists, namespace=namespace, name=name)
            return diagnose(pod, reading.read(lists, namespace, [pod]))
        workload = reading.read_workload(lists, kind, namespace=namespace, name=name)
        cluster = reading.read(lists, namespace, workload.pods)
        return _with_misplaced({"kind": kind, **workload.document}, _of_workload(workload, cluster))
    except StatusError as error:
        if error.status != 403:
            raise
        raise RetryableError(f"{error}. {answers.BIND_ROLE}") from error


def _with_misplaced(workload: Document, found: Diagnosis) -> Diagnosis:
    """Return a diagnosis with the annotations that the workload has in place of its pods."""
    for each in pod_findings.misplaced(workload):
        return replace(
            found,
            answer=f"Its pods get no GPU: {each.subject} {each.found}. {found.answer}",
            helps=[each.remedy, *found.helps],
            findings=[each, *found.findings],
            state=PodState.WAITS if found.state is PodState.FITS else found.state,
        )
    return found


def _of_workload(found: Workload, cluster: Observed) -> Diagnosis:
    """Return the diagnosis of the pod that represents the others.

    That is one that waits; if none can be created, the pod of the template; else one with a fault.
    """
    failed = [
        problem(str(found), f"creates no more pods: {text}", expected="", remedy=_cure(text))
        for text in filter(None, [found.failure])
    ]
    if found.waiting:
        waits = diagnose(found.waiting[0], cluster)
        return replace(
            waits,
            answer=f"{len(found.waiting)} of {len(found.pods)} pods of {found} wait. "
            f"{waits.answer}",
            findings=[*waits.findings, *failed],
        )
    template = reading.pod_of(found.document)
    if template is not None and (failed or not found.pods):
        made = diagnose(template, cluster, is_created=False)
        has = "creates no more pods" if found.pods else "has no pods"
        text = f"{found} {has}: {found.no_pods}".removesuffix(".")
        if not failed:
            return replace(made, answer=f"{text}. One of its pods: {made.answer}")
        return replace(
            made,
            answer=f"{text}.",
            state=PodState.WAITS,
            helps=made.helps or [_cure(found.failure)],
        )
    every = [diagnose(pod, cluster) for pod in found.pods[:_MAX_PODS]]
    worst = next((each for each in every if each.findings), every[0])
    return replace(worst, answer=f"No pod of {found} waits. {worst.answer}")


def _cure(failure: str) -> str:
    """Return the remedy for a controller whose object the API server refuses."""
    cure = "correct what the message names"
    if named := _UNANSWERED.search(failure):
        is_ours = objects.webhooks([{"webhooks": [{"name": named[1]}]}])
        how = " (tensorfusion-dra doctor says what is wrong)" if is_ours else ""
        cure = f"start webhook {named[1]} again, which does not answer{how}"
    return f"{cure}; the controller tries again"


def exit_code(found: Diagnosis) -> int:
    """Return 0 if the pod is schedulable, or scheduled and without a problem; else 1."""
    if found.state is PodState.BOUND:
        return int(any(finding.level is Level.PROBLEM for finding in found.findings))
    return int(found.state is not PodState.FITS)


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
        found = list(of_bound(pod, observed))
        events = observed.events_of(pod) if phase == "Pending" else ()
        reason = reading.newest_failure(
            event
            for event in events or ()
            if event.get("type") == "Warning"
            and as_map(event.get("source")).get("component") == "kubelet"
        )
        return Diagnosis(
            pod=_name(pod),
            state=PodState.STUCK if reason else PodState.BOUND,
            answer=answers.bound(_name(pod), str(node or ""), str(phase or ""), reason, found),
            helps=list(dict.fromkeys(finding.remedy for finding in found)),
            findings=found,
        )
    resolved = resolve(pod, observed, is_created=is_created)
    found = resolved.findings
    found += halted(resolved.pod, observed)
    found += other_scheduler(resolved.pod)
    if not observed.missing:
        found += missing_classes(
            resolved.claims, [str(each["metadata"]["name"]) for each in observed.classes]
        )
        found += unknown_resources(resolved.pod, observed, is_created=is_created)
    return _tried(resolved, observed)


def _tried(resolved: Resolved, observed: Observed) -> Diagnosis:
    """Return the diagnosis by a trial on all nodes."""
    clusters = NodeClusters(
        allocation.cluster(
            slices=observed.slices,
            classes=observed.classes,
            claims=[*observed.claims, *resolved.future],
            release=observed.release,
        )
    )
    trial = Trial(pod=resolved.pod, claims=resolved.claims)
    no_right = f"no right to list {' and '.join(observed.missing)}. {answers.BIND_ROLE}"
    untried = no_right if observed.missing else cel_evaluation.missing
    can_try = resolved.is_complete and not untried
    outcomes = placement.outcomes(trial, clusters, observed.nodes) if can_try else []
    fits = any(each.fits for each in outcomes) and not any(each.error for each in outcomes)
    name = _name(resolved.pod)
    every = list(resolved.findings)
    if not observed.missing and any(
        each.get("deviceClassName") == names.DEVICE_CLASS
        for claim in resolved.claims
        for each in resource_claims.requests(claim)
    ):
        published = objects.published(observed.own_slices)
        every += [each for each in published if each.level is not Level.OK]
    helps = [
        each.remedy
        for each in resolved.findings
        if each.remedy and each.level in (Level.PROBLEM, Level.WARNING)
    ]
    if resolved.problems:
        answer = answers.blocked(name, resolved.problems, trial, outcomes)
    elif untried:
        answer = f"{name} waits; whether a card is free for it was not tried: {untried}"
    elif fits:
        answer = answers.fits(name, outcomes, has_claims=bool(resolved.claims))
    else:
        answer = answers.unfit(name, trial, outcomes)
    if not fits and outcomes:
        helps += answers.helps(trial, clusters, observed.nodes, outcomes)
    return Diagnosis(
        pod=name,
        state=PodState.FITS if fits and not resolved.problems else PodState.WAITS,
        answer=answer,
        helps=list(dict.fromkeys(helps)),
        findings=every,
        outcomes=outcomes,
        unchecked=[
            *observed.unreadable,
            *(f"{_NEED_CEL}: {reason}" for reason in [cel_evaluation.missing] if reason),
        ],
        release=observed.release,
    )


def _name(pod: Document) -> str:
    metadata = as_map(pod.get("metadata"))
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def resolve(pod: Document, observed: Observed, *, is_created: bool) -> Resolved:
    """Return the pod with its claims.

    Args:
        is_created: False for a pod from a file, to which the webhook will still add its claim.
    """
    found = Resolved(pod=pod)
    if not is_created:
        found.findings += translated(found, observed)
        pod = found.pod
    annotations = review.annotations_of(pod)
    has_entry = any(name_of(entry) == names.POD_CLAIM for entry in resource_claims.entries(pod))
    by_resources = pod_resources.named(pod)
    requests_share = not has_entry and (bool(by_resources) or pod_request.requests_gpu(annotations))
    decision = _decision(observed, pod) if requests_share or has_entry else PASSED
    _judge(
        found,
        decision,
        annotations,
        is_created=is_created,
        is_admitted=has_entry and is_created,
    )
    if by_resources and (is_created or not _has_webhook(observed)):
        found.findings += pod_findings.unserved([pod], has_webhook=_has_webhook(observed))
    if requests_share and decision.errors:
        found.is_complete = False
    elif requests_share and decision.changed is not None:
        found.pod = decision.changed
        if is_created and not by_resources:
            found.findings.append(_no_claim(observed))
        elif not (by_resources or _has_webhook(observed)):
            found.findings.append(
                problem(
                    WEBHOOK,
                    "is not installed, so the pod's annotations would give it no claim",
                    expected="a MutatingWebhookConfiguration of this driver",
                    remedy="install the webhook before the pod is created",
                )
            )
    elif not resource_claims.entries(pod):
        found.findings += _of_new_pods(pod_findings.without_effect(pod), is_created=is_created)
    for entry in resource_claims.entries(found.pod):
        name = resource_claims.stored_name(found.pod, entry)
        if name:
            _add_stored(found, observed, name)
        elif name is not None:
            _add_future(found, observed, entry, is_created=is_created)
    extended = resource_claims.extended_name(found.pod)
    if extended:
        _add_stored(found, observed, extended)
    elif claim := resource_claims.extended_claim(found.pod, observed.classes, observed.nodes):
        found.future.append(claim)
    unnamed = _unnamed(found.pod, found.claims, observed)
    found.findings += _of_new_pods(unnamed, is_created=is_created)
    return found


def _unnamed(pod: Document, claims: Sequence[Document], observed: Observed) -> Iterator[Finding]:
    """Yield the findings about claims of this driver that no container of the pod names."""
    own = {names.DEVICE_CLASS, *kubernetes.own_classes(observed.classes)}
    ours = {
        claim["metadata"]["name"]
        for claim in claims
        if any(each.get("deviceClassName") in own for each in resource_claims.requests(claim))
    }
    entries = map(name_of, resource_claims.entries(pod))
    stored = resource_claims.names_by_entry(pod)
    # A claim that is not created yet has the name that resource_claims.created() gives it.
    made = {each: stored.get(each, f"{pod['metadata'].get('name')}-{each}") for each in entries}
    return pod_findings.unnamed(pod, [each for each, claim in made.items() if claim in ours])


def of_bound(pod: Document, observed: Observed) -> Iterator[Finding]:
    """Yield the findings about a pod that has a node, and about its claims."""
    yield from deleted(pod, observed)
    has_entry = any(name_of(entry) == names.POD_CLAIM for entry in resource_claims.entries(pod))
    requests = pod_request.requests_gpu(review.annotations_of(pod))
    decision = _decision(observed, pod) if requests and not has_entry else PASSED
    if decision.changed is not None or decision.errors:
        yield _no_claim(observed)
    elif not resource_claims.entries(pod):
        yield from _of_new_pods(pod_findings.without_effect(pod))
    named = (_stored(pod, observed, name) for name in reading.claim_names(pod))
    claims = [claim for claim in named if claim is not None]
    yield from _of_new_pods(_unnamed(pod, claims, observed))
    for claim in claims:
        yield from _unenforced(claim, str(pod["spec"].get("nodeName")))
        yield from _outdated(pod, claim, observed)


def _of_new_pods(found: Iterable[Finding], *, is_created: bool = True) -> Iterator[Finding]:
    """Yield findings whose remedies have an effect on new pods only."""
    again = ", then delete the pod and create it again" if is_created else ""
    for each in found:
        yield replace(each, remedy=f"{each.remedy}{again}")


def _outdated(pod: Document, claim: Document, observed: Observed) -> Iterator[Finding]:
    """Yield the finding about a claim that is older than the pod's annotations.

    Percentages of several models are other amounts once nodes come or go.
    """
    for entry in resource_claims.entries(pod):
        template = observed.templates.get(str(entry.get("resourceClaimTemplateName")))
        is_ours = resource_claims.stored_name(pod, entry) == claim["metadata"]["name"]
        if template is None or not is_ours or not claim_admission.is_labelled(claim):
            continue
        if not pod_request.parse(review.annotations_of(pod)).percentages:
            made = resource_claims.created(pod, name_of(entry), template)
            yield from pod_findings.outdated(claim, _decision(observed, pod, made).changed or claim)


def _stored(pod: Document, observed: Observed, name: str) -> Document | None:
    """Return the claim of this name in the pod's namespace; None if it does not exist."""
    namespace = pod["metadata"].get("namespace")
    for claim in observed.claims:
        if (claim["metadata"].get("namespace"), claim["metadata"]["name"]) == (namespace, name):
            return claim
    return None


def _has_webhook(observed: Observed) -> bool:
    """Return True unless the configurations are known and none of them is of this driver."""
    return observed.webhooks is None or bool(objects.webhooks(observed.webhooks))


def _no_claim(observed: Observed) -> Finding:
    """Return the finding about a pod that has our annotations and no claim."""
    again = "then delete the pod and create it again: claims are added only to new pods"
    if not _has_webhook(observed):
        return problem(
            WEBHOOK,
            "is not installed, so the pod's annotations gave it no claim",
            expected="a MutatingWebhookConfiguration of this driver",
            remedy=f"install the webhook, {again}",
        )
    return problem(
        WEBHOOK,
        "the pod has annotations of this driver, but the webhook gave it no claim",
        expected=f"an entry {names.POD_CLAIM} in spec.resourceClaims",
        remedy="check that the webhook runs and that the namespace is not excluded "
        "(tensorfusion-dra "
        f"doctor, kubectl describe mutatingwebhookconfigurations); {again}",
    )


def _judge(
    found: Resolved,
    decision: Decision,
    annotations: Mapping[str, str],
    *,
    is_created: bool,
    is_admitted: bool,
) -> None:
    """Append a finding for each error and each unknown annotation that the webhook reports.

    An error of a pod that was admitted, by an earlier release or before its annotations were
    edited, does not keep it from being scheduled. An annotation that resembles a known one is a
    warning, because its author meant that one.
    """
    again = ", and create the pod again" if is_created else ""
    for error in decision.errors:
        subject = error.path or "pod"
        found.findings.append(
            not_checked(subject, error.text)
            if error.text == cel_evaluation.missing
            else Finding(
                level=Level.WARNING if is_admitted else Level.PROBLEM,
                subject=subject,
                found=error.text,
                remedy=f"correct {subject}{again}",
            )
        )
    for text in decision.warnings:
        subject, _, reason = text.partition(": ")
        if subject in annotations and "unknown annotation" in reason:
            is_typo = "did you mean" in reason
            found.findings.append(
                Finding(
                    level=Level.WARNING if is_typo else Level.NOTE,
                    subject=subject,
                    found=reason,
                    remedy=f"{'correct' if is_typo else 'correct or remove'} {subject}{again}",
                )
            )


def _add_stored(found: Resolved, observed: Observed, name: str) -> None:
    """Add a claim that exists, with its faults."""
    claim = _stored(found.pod, observed, name)
    if claim is None:
        found.is_complete = False
        if "ResourceClaims" not in observed.missing:
            found.findings.append(
                problem(
                    f"ResourceClaim {name}",
                    "not found",
                    expected="a claim of this name in the pod's namespace",
                    remedy=f"create the claim {name}, or correct spec.resourceClaims",
                )
            )
        return
    if "deletionTimestamp" in claim["metadata"]:
        found.findings.append(
            problem(
                f"ResourceClaim {name}",
                "is being deleted",
                expected="a claim that stays",
                remedy="wait until it is gone and create it again",
            )
        )
    if not pod_request.parse(review.annotations_of(found.pod)).whole:
        dropped = list(dropped_amounts(found.pod, claim))
        found.findings += dropped or _outdated(found.pod, claim, observed)
    found.findings += _unbound(claim)
    found.stored.append(claim)


def _add_future(
    found: Resolved, observed: Observed, entry: Mapping[str, object], *, is_created: bool
) -> None:
    """Add the claim that Kubernetes will create for an entry of the pod, with its faults."""
    name = str(entry.get("resourceClaimTemplateName") or "")
    template = observed.templates.get(name)
    if template is None:
        found.findings.append(_no_template(name, found.pod, observed))
        found.is_complete = False
        return
    claim: Document = resource_claims.created(found.pod, name_of(entry), template)
    decision = _decision(observed, found.pod, claim)
    found.findings += [
        problem(str(error.path or "claim"), error.text, expected="", remedy="")
        for error in decision.errors
    ]
    if is_created and not any(each.subject == WEBHOOK for each in found.findings):
        reason = "FailedResourceClaimCreation"
        events = observed.events_of(found.pod) or ()
        failure = reading.newest_failure(each for each in events if each.get("reason") == reason)
        found.findings.append(
            problem(
                f"claim from ResourceClaimTemplate {name}",
                f"not created: {failure.removeprefix(f'{reason}: ')}"
                if failure
                else "not created yet",
                expected="a claim that kube-controller-manager creates within seconds",
                remedy=_cure(failure)
                if failure
                else "check kube-controller-manager, and the pod's Events: kubectl describe pod",
            )
        )
    found.future.append(decision.changed or claim)


def _no_template(name: str, pod: Document, observed: Observed) -> Finding:
    """Return the finding about a template that does not exist or could not be read."""
    if not observed.has_templates:
        return problem(
            f"claim from ResourceClaimTemplate {name}",
            "not created yet, and the template could not be read",
            expected="the right to list ResourceClaimTemplates in the pod's namespace",
            remedy=answers.BIND_ROLE,
        )
    waits, remedy = "", f"create the template {name} in the pod's namespace"
    if name == names.CLAIM_TEMPLATE:
        namespace, label = pod["metadata"].get("namespace"), names.LABEL_TEMPLATE_WANTED
        remedy = f"kubectl apply -n {namespace} -f daemonset/claim-template.yaml"
        if (observed.labels_of(pod) or {}).get(label) == "true":
            waits = f"; the namespace's label {label} takes effect at the next `helm upgrade`"
    return problem(
        f"ResourceClaimTemplate {name}",
        f"not found, so the pod's claim is not created{waits}",
        expected="a template of this name in the pod's namespace",
        remedy=remedy,
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    """Objects read before; implements the port Objects and the readers of the admission."""

    listed: Sequence[Document]

    def items(self) -> Sequence[Document]:
        return self.listed

    def current(self) -> Cards:
        return cards.of_slices(self.listed)

    def selected(self, key: Hashable, select: Callable[[Document], Document], **_: object) -> Cards:
        return cards.of_slices(map(select, self.listed))

    def find(self, pod: PodRef, **_: float) -> Document:
        """Return the pod in question."""
        return self.listed[0]


def _decision(observed: Observed, pod: Document, claim: Document | None = None) -> Decision:
    """Return the webhook's decision on the pod, or on a claim that was just created for it.

    Its settings are not known here. Isolation `hard` is allowed: the node refuses it if its
    enforcer has none.
    """
    admission = AdmissionRules(
        pools=_Listed(observed.pools),
        templates=_Listed(observed.pool_templates),
        pods=_Listed([pod]),
        slices=_Listed(observed.own_slices),
        classes=_Listed(observed.classes),
        scheduler="default-scheduler",
        virtual=False,
        enforces_hard=True,
    )
    if claim is None:
        return admission.pod(_review("", "Pod", pod))
    return admission.claim(_review(names.RESOURCE_GROUP, "ResourceClaim", claim))


def _review(group: str, kind: str, document: Document) -> Review:
    metadata = document.get("metadata") or {}
    return Review(
        uid="",
        group=group,
        version="v1",
        kind=kind,
        operation="CREATE",
        subresource="",
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        document=dict(document),
        old={},
        wait_seconds=0.0,
    )


def deleted(pod: Document, observed: Observed) -> Iterator[Finding]:
    """Yield that the pod is in Terminating, and what it waits for."""
    metadata = as_map(pod.get("metadata"))
    if "deletionTimestamp" not in metadata:
        return
    node = as_map(pod.get("spec")).get("nodeName")
    finalizers = list(map(str, as_list(metadata.get("finalizers"))))
    waits = [f"its finalizers {', '.join(finalizers)}"] if finalizers else []
    waits += [f"the kubelet of {node}"] if node else []
    remedy = f"wait until it is gone; after the deadline it waits for {' and '.join(waits)}"
    if node and _is_left_alone(pod, observed):
        remedy = (
            f"install the node plugin on {node} again: the pod ends once it has unprepared its "
            "claims"
        )
    yield problem(
        "pod",
        f"is being deleted, with the deadline {metadata['deletionTimestamp']}",
        expected="a pod that is to run",
        remedy=remedy if waits else "wait until it is gone",
    )


def _is_left_alone(pod: Document, observed: Observed) -> bool:
    """Return True if the pod has claims of this driver, which publishes nothing on its node.

    The kubelet deletes the slices of a node plugin that is gone for 30 s.
    """
    publishing = {each["spec"].get("nodeName") for each in observed.own_slices}
    has_claim = any(
        result.get("driver") == names.DRIVER
        for name in reading.claim_names(pod)
        for result in resource_claims.results(_stored(pod, observed, name) or {})
    )
    is_known = "ResourceSlices" not in observed.missing
    return has_claim and is_known and pod["spec"]["nodeName"] not in publishing


def halted(pod: Document, observed: Observed) -> Iterator[Finding]:
    """Yield why no scheduler places this pod, whatever is free."""
    spec = as_map(pod.get("spec"))
    yield from deleted(pod, observed)
    gates = [name_of(gate) for gate in as_list(spec.get("schedulingGates"))]
    if gates:
        yield problem(
            "spec.schedulingGates",
            ", ".join(gates),
            expected="none: schedulers ignore a pod with gates",
            remedy="find the controller that has to remove the gates",
        )
    node = spec.get("nodeName")
    if node and resource_claims.entries(pod):
        yield problem(
            "spec.nodeName",
            f"{node}, so no scheduler allocates the pod's claims",
            expected="none",
            remedy=f"remove it, and select the node by nodeSelector kubernetes.io/hostname: {node}",
        )


def other_scheduler(pod: Document) -> Iterator[Finding]:
    """Yield a note if a scheduler other than kube-scheduler has to place the pod.

    It is a problem if that is Tensor Fusion's own, which allocates no claims.
    """
    scheduler = as_map(pod.get("spec")).get("schedulerName") or _SCHEDULER
    if scheduler == names.TENSOR_FUSION_SCHEDULER:
        yield problem(
            "spec.schedulerName",
            str(scheduler),
            expected=f"{_SCHEDULER}, or another one that allocates claims",
            remedy="remove the field, or set the webhook's scheduler-name",
        )
    elif scheduler != _SCHEDULER:
        yield note("spec.schedulerName", f"{scheduler}: it has to run, and to allocate claims")


def missing_classes(claims: Sequence[Document], classes: Sequence[str]) -> Iterator[Finding]:
    """Yield each DeviceClass that the claims name and that does not exist."""
    named = dict.fromkeys(
        str(each.get("deviceClassName", ""))
        for claim in claims
        for each in resource_claims.requests(claim)
    )
    for name in named:
        if name not in classes:
            yield problem(
                f"DeviceClass {name}",
                "not found",
                expected=", ".join(sorted(classes)) or "one DeviceClass at least",
                remedy="install the driver's DeviceClass (docs/install.md)"
                if name == names.DEVICE_CLASS
                else "correct deviceClassName; the cluster has "
                f"{printable.first(sorted(classes)) or 'none'}",
            )


def _spoken(observed: Observed) -> set[Dialect]:
    """Return the dialects of the webhook; all of them if its configuration is not known."""
    called = None if observed.webhooks is None else objects.webhooks(observed.webhooks)
    return {each for each in Dialect if called is None or objects.of_dialect(each) in called}


def translated(found: Resolved, observed: Observed) -> Iterator[Finding]:
    """Translate a pod that is not created yet, as the webhook does in a labelled namespace.

    Yield why a word cannot be translated.
    """
    if not dialects.translate(found.pod, _spoken(observed)).matches:
        return  # as most pods, which need no right to read namespaces
    labels = observed.labels_of(found.pod) or {}
    spoken = [e for e in _spoken(observed) if labels.get(f"{names.LABEL_DIALECT}{e}") == "true"]
    pod = copy.deepcopy(dict(found.pod))
    translation = dialects.translate(pod, spoken)
    for path, text in translation.refusals:
        yield problem(path, text, expected="", remedy=f"correct {path}")
    if translation.annotations and not translation.refusals:
        dialects.apply(pod, translation)
        found.pod = pod


def unknown_resources(
    pod: Document, observed: Observed, *, is_created: bool = True
) -> Iterator[Finding]:
    """Yield each extended resource of the pod that neither a DeviceClass nor a node has.

    One finding names those of another system, whose words the webhook translates on demand.
    """
    offered = resource_claims.of_device_plugins(observed.nodes)
    offered |= resource_claims.class_of_resource(observed.classes).keys()
    asked = dict.fromkeys(name for _, name, _ in resource_claims.extended_resources(pod))
    unknown = [name for name in asked if name not in {*offered, *pod_resources.AMOUNTS}]
    if dialect := pod_findings.dialect_of(unknown):
        found = pod_findings.untranslated(
            pod, dialect, observed.labels_of(pod), is_spoken=dialect in _spoken(observed)
        )
        yield from _of_new_pods([found], is_created=is_created)
        return
    for name in unknown:
        yield problem(
            f"extended resource {name}",
            "no DeviceClass has it as extendedResourceName, and no node has it",
            expected="one of the two",
            remedy=f"set extendedResourceName: {name} in the DeviceClass (the chart's "
            "deviceClass.extendedResourceName), or correct resources.limits",
        )


def _unenforced(claim: Document, node: str) -> Iterator[Finding]:
    """Yield each of our devices in the claim's status that is not ready, or whose limits fail."""
    name = as_map(claim.get("metadata")).get("name")
    for device in map(as_map, as_list(as_map(claim.get("status")).get("devices"))):
        if device.get("driver") != names.DRIVER:
            continue
        for condition in map(as_map, as_list(device.get("conditions"))):
            if condition.get("type") == device_status.CONDITION_CHANGED:
                yield note(
                    f"ResourceClaim {name}",
                    f"limits were changed while it runs: {condition.get('reason')}: "
                    f"{condition.get('message')}",
                    remedy="see docs/use.md, Change a limit",
                )
            if condition.get("status") != "False" or condition.get("type") not in _SAID_OF:
                continue
            yield warning(
                f"ResourceClaim {name}",
                f"{_SAID_OF[str(condition['type'])]} {device.get('device')}: "
                f"{condition.get('reason')}: {condition.get('message')}",
                expected=f"the condition {condition['type']} True",
                remedy=f"run tensorfusion-dra doctor in the node plugin's pod on {node}",
            )


def _unbound(claim: Document) -> Iterator[Finding]:
    """Yield each of our devices that the scheduler allocated and does not bind yet."""
    for result in device_status.awaiting(claim):
        if names.BINDING_READY not in device_status.true_conditions(claim, result):
            node = device_facts.node_name(result["pool"])
            yield problem(
                f"ResourceClaim {claim['metadata']['name']}",
                f"waits at the scheduler for the enforcer of {node}",
                expected=f"the condition {names.BINDING_READY} True",
                remedy=f"run tensorfusion-dra doctor in the node plugin's pod on {node}",
            )


def dropped_amounts(pod: Document, claim: Document) -> Iterator[Finding]:
    """Yield a warning if the pod's annotations name amounts and its claim has none of them.

    Such a claim takes whole cards. Claims of other classes, such as one for a network card, have
    nothing to do with annotations.
    """
    annotations = review.annotations_of(pod)
    amounts = (names.ANNOTATION_TFLOPS_REQUEST, names.ANNOTATION_VRAM_REQUEST)
    named = [name for name in amounts if annotations.get(name)]
    asked = [
        as_map(each.get("capacity")).get("requests")
        for each in resource_claims.requests(claim)
        if each.get("deviceClassName") == names.DEVICE_CLASS
    ]
    if named and asked and not any(asked):
        yield warning(
            f"ResourceClaim {as_map(claim.get('metadata')).get('name')}",
            f"requests whole cards, although the pod has {named[0]}",
            expected="capacity.requests, which the API server keeps with the feature gate "
            f"{GATE_CONSUMABLE_CAPACITY}",
            remedy=f"turn {GATE_CONSUMABLE_CAPACITY} on (Kubernetes 1.35), or see whether "
            "the claim was filled by the webhook (tensorfusion-dra doctor)",
        )
