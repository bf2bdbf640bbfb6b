"""The claims with which a pod is scheduled, by the webhook's own rules, and their faults."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tensorfusion_dra.app.why.observed import Observed
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import claim_admission, pod_request
from tensorfusion_dra.core.claims import workers
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.doctor import pending
from tensorfusion_dra.core.doctor.finding import Finding, Level, problem
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import pod_claims, review
from tensorfusion_dra.core.kubernetes.review import PASSED, Review, Verdict
from tensorfusion_dra.core.kubernetes.untyped_json import name_of
from tensorfusion_dra.webhook.admission import Admission

Document = Mapping[str, Any]


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
    def blocks(self) -> bool:
        """Return True if a finding keeps the pod from being scheduled, whatever is free."""
        return any(finding.level is Level.PROBLEM for finding in self.findings)


def resolve(pod: Document, observed: Observed, *, is_created: bool) -> Resolved:
    """Return the pod with its claims.

    Args:
        is_created: False for a pod from a file, to which the webhook will still add its claim.
    """
    found = Resolved(pod=pod)
    annotations = review.annotations_of(pod)
    has_entry = any(name_of(entry) == names.POD_CLAIM for entry in pod_claims.entries(pod))
    if pod_request.requests_gpu(annotations) and not has_entry:
        verdict = _verdict(observed, pod)
        _judge(found, verdict, annotations, is_created=is_created)
        if verdict.errors:
            found.is_complete = False
        elif verdict.changed is not None:
            if is_created:
                found.findings.append(pending.no_claim(observed.webhooks))
            elif not pending.has_webhook(observed.webhooks):
                found.findings.append(pending.no_webhook())
            found.pod = verdict.changed
        else:
            found.findings.append(pending.without_dra())
    elif has_entry:
        verdict = _verdict(observed, pod)
        _judge(found, verdict, annotations, is_created=is_created, is_admitted=is_created)
    for entry in pod_claims.entries(found.pod):
        name = pod_claims.stored_name(found.pod, entry)
        if name:
            _add_stored(found, observed, name)
        elif name is not None:
            _add_future(found, observed, entry, is_created=is_created)
    extended = pod_claims.extended_name(found.pod)
    if extended:
        _add_stored(found, observed, extended)
    elif claim := pod_claims.extended_claim(found.pod, observed.classes, observed.nodes):
        found.future.append(claim)
    return found


def of_bound(pod: Document, observed: Observed) -> Iterator[Finding]:
    """Yield the findings about the claims of a pod that has a node."""
    yield from missed(pod, observed)
    node = str(pod["spec"].get("nodeName"))
    for claim in stored(pod, observed):
        yield from pending.unenforced(claim, node)
        yield from edited(pod, claim)


def stored(pod: Document, observed: Observed) -> list[Document]:
    """Return the claims of the pod that exist."""
    wanted = {pod_claims.stored_name(pod, entry) for entry in pod_claims.entries(pod)}
    wanted.add(pod_claims.extended_name(pod))
    namespace = pod["metadata"].get("namespace")
    return [
        claim
        for claim in observed.claims
        if claim["metadata"].get("namespace") == namespace and claim["metadata"]["name"] in wanted
    ]


def edited(pod: Document, claim: Document) -> Iterator[Finding]:
    """Yield the finding about a claim that was filled from other annotations than the pod has."""
    uid = pod["metadata"].get("uid")
    owners = {owner.get("uid") for owner in claim["metadata"].get("ownerReferences") or ()}
    errors: list[Any] = []
    annotations = {key: str(text) for key, text in workers.foreign_annotations(pod).items()}
    wanted = pod_request.parse(annotations, errors)
    if uid in owners and claim_admission.is_labelled(claim) and not errors:
        try:
            differing = claim_admission.differing(claim, wanted)
        except InputError:
            return
        if differing:
            yield pending.edited_annotations(str(claim["metadata"]["name"]), differing)


def missed(pod: Document, observed: Observed) -> Iterator[Finding]:
    """Yield the finding about a scheduled pod that lacks the claim that its annotations request."""
    has_entry = any(name_of(entry) == names.POD_CLAIM for entry in pod_claims.entries(pod))
    requests = pod_request.requests_gpu(review.annotations_of(pod))
    verdict = _verdict(observed, pod) if requests and not has_entry else PASSED
    if verdict.changed is not None or verdict.errors:
        yield pending.no_claim(observed.webhooks)


def _judge(
    found: Resolved,
    verdict: Verdict,
    annotations: Mapping[str, str],
    *,
    is_created: bool,
    is_admitted: bool = False,
) -> None:
    """Append a finding for each error and each unknown annotation that the webhook reports.

    An error of a pod that was admitted, by an earlier release or before its annotations were
    edited, does not keep it from being scheduled. An annotation that resembles a known one is a
    warning, because its author meant that one.
    """
    again = ", and create the pod again" if is_created else ""
    for error in verdict.errors:
        subject = error.path or "pod"
        cure = f"correct {subject}{again}"
        level = Level.WARNING if is_admitted else Level.PROBLEM
        found.findings.append(Finding(level=level, subject=subject, found=error.text, cure=cure))
    for text in verdict.warnings:
        subject, _, reason = text.partition(": ")
        if subject in annotations and "unknown annotation" in reason:
            is_typo = "did you mean" in reason
            cure = f"{'correct' if is_typo else 'correct or remove'} {subject}{again}"
            level = Level.WARNING if is_typo else Level.NOTE
            found.findings.append(Finding(level=level, subject=subject, found=reason, cure=cure))


def _add_stored(found: Resolved, observed: Observed, name: str) -> None:
    """Add a claim that exists, with its faults."""
    namespace = found.pod["metadata"].get("namespace")
    claim = next(
        (
            each
            for each in observed.claims
            if each["metadata"].get("namespace") == namespace and each["metadata"]["name"] == name
        ),
        None,
    )
    if claim is None:
        found.findings.append(pending.missing_claim(name))
        found.is_complete = False
        return
    if "deletionTimestamp" in claim["metadata"]:
        found.findings.append(pending.deleted_claim(name))
    if not pod_request.parse(review.annotations_of(found.pod), []).whole:
        dropped = list(pending.dropped_amounts(found.pod, claim))
        found.findings += dropped or edited(found.pod, claim)
    found.stored.append(claim)


def _add_future(
    found: Resolved, observed: Observed, entry: Mapping[str, object], *, is_created: bool
) -> None:
    """Add the claim that Kubernetes will create for an entry of the pod, with its faults."""
    name = str(entry.get("resourceClaimTemplateName") or "")
    template = observed.templates.get(name)
    if template is None:
        found.findings.append(
            pending.missing_template(name, namespace=str(found.pod["metadata"].get("namespace")))
            if observed.has_templates
            else pending.unread_template(name)
        )
        found.is_complete = False
        return
    claim: Document = pod_claims.created(found.pod, name_of(entry), template)
    verdict = _verdict(observed, found.pod, claim)
    found.findings += [
        problem(str(error.path or "claim"), error.text, expected="", cure="")
        for error in verdict.errors
    ]
    if is_created and not any(each.subject == pending.WEBHOOK for each in found.findings):
        events = observed.events_of(found.pod)
        found.findings.append(pending.claim_not_created(name, events=events))
    found.future.append(verdict.changed or claim)


_WAIT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Listed:
    """Objects read before; implements driver.ports.cluster.Objects and PublishedSlices."""

    listed: Sequence[Document]

    def items(self) -> Sequence[Document]:
        return self.listed

    def published(self, *, wait_seconds: float) -> Sequence[Document]:
        del wait_seconds
        return self.listed


@dataclass(frozen=True, slots=True)
class _OnePod:
    """The pod in question; implements webhook.ports.PodReader."""

    pod: Document

    def find(self, pod: PodRef, *, wait_seconds: float) -> Document | None:
        del pod, wait_seconds
        return self.pod


def _verdict(observed: Observed, pod: Document, claim: Document | None = None) -> Verdict:
    """Return the webhook's verdict on the pod, or on a claim that was just created for it.

    Its settings are not known here. A claim requests virtual amounts if the published devices have
    them, and isolation `hard` is allowed: the node refuses it if its enforcer has none.
    """
    ours = [each for each in observed.slices if each["spec"]["driver"] == names.DRIVER]
    admission = Admission(
        pools=_Listed(observed.pools),
        templates=_Listed(observed.pool_templates),
        pods=_OnePod(pod),
        slices=_Listed(ours),
        scheduler="default-scheduler",
        virtual=any(
            names.CAPACITY_VIRTUAL_VRAM in (device.get("capacity") or {})
            for each in ours
            for device in each["spec"].get("devices") or ()
        ),
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
        wait_seconds=_WAIT_SECONDS,
    )
