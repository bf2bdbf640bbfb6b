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

_RESERVED_AT_MOST: Final = 256


@dataclass(slots=True, kw_only=True)
class Resolved:
    """A pod as it will be scheduled.

    Attributes:
        claims: Its claims; those that do not exist yet as they will be created.
        future: Those of the claims that do not exist yet.
        is_complete: False if a claim is not known at all.
    """

    pod: Document
    claims: list[Document] = field(default_factory=list)
    future: list[Document] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    is_complete: bool = True

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
        verdict = Foreseen(observed, pod).pod()
        _judge(found, verdict, annotations, is_created=is_created)
        if verdict.errors:
            verdict = _without_faults(pod, verdict, observed)
            if not verdict.errors:
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
        verdict = Foreseen(observed, pod).pod()
        _judge(found, verdict, annotations, is_created=is_created, is_admitted=is_created)
    resolver = _Resolver(found, observed, is_created=is_created)
    for entry in pod_claims.entries(found.pod):
        resolver.add(entry)
    resolver.add_extended()
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
    verdict = Foreseen(observed, pod).pod() if requests and not has_entry else PASSED
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


def _without_faults(pod: Document, verdict: Verdict, observed: Observed) -> Verdict:
    """Return the verdict on the pod without the annotations that the webhook refuses.

    So the other faults of the pod are found as well, such as a missing template.
    """
    faulty = {error.path for error in verdict.errors}
    left = {
        name: value
        for name, value in review.annotations_of(pod).items()
        if pod_request.path_of(name) not in faulty
    }
    mended = {**pod, "metadata": {**pod["metadata"], "annotations": left}}
    return Foreseen(observed, mended).pod()


class _Resolver:
    def __init__(self, found: Resolved, observed: Observed, *, is_created: bool) -> None:
        self._found: Final = found
        self._observed: Final = observed
        self._is_created: Final = is_created
        self._namespace: Final = str(found.pod["metadata"].get("namespace", ""))
        self._stored: Final = {
            str(claim["metadata"]["name"]): claim
            for claim in observed.claims
            if claim["metadata"].get("namespace") == self._namespace
        }

    def add(self, entry: Mapping[str, object]) -> None:
        """Add the claim of one entry of the pod."""
        name = pod_claims.stored_name(self._found.pod, entry)
        if name is None:
            return
        if name:
            self._add_stored(name)
        else:
            self._add_future(name_of(entry), str(entry.get("resourceClaimTemplateName") or ""))

    def add_extended(self) -> None:
        """Add the claim of the pod's extended resources."""
        name = pod_claims.extended_name(self._found.pod)
        if name:
            self._add_stored(name)
            return
        claim = pod_claims.extended_claim(
            self._found.pod, self._observed.classes, self._observed.nodes
        )
        if claim is not None:
            self._found.claims.append(claim)
            self._found.future.append(claim)

    def _add_stored(self, name: str) -> None:
        claim = self._stored.get(name)
        if claim is None:
            self._found.findings.append(pending.missing_claim(name))
            self._found.is_complete = False
            return
        if "deletionTimestamp" in claim["metadata"]:
            self._found.findings.append(pending.deleted_claim(name))
        consumers = (claim.get("status") or {}).get("reservedFor") or ()
        uid = self._found.pod["metadata"].get("uid")
        if len(consumers) >= _RESERVED_AT_MOST and uid not in {each["uid"] for each in consumers}:
            self._found.findings.append(pending.crowded_claim(name, len(consumers)))
        if not pod_request.parse(review.annotations_of(self._found.pod), []).whole:
            dropped = list(pending.dropped_amounts(self._found.pod, claim))
            self._found.findings += dropped or edited(self._found.pod, claim)
        self._found.claims.append(claim)

    def _add_future(self, entry: str, template_name: str) -> None:
        template = self._observed.templates.get(template_name)
        if template is None:
            self._found.findings.append(
                pending.missing_template(template_name, namespace=self._namespace)
                if self._observed.has_templates
                else pending.unread_template(template_name)
            )
            self._found.is_complete = False
            return
        claim: Document = pod_claims.created(self._found.pod, entry, template)
        verdict = Foreseen(self._observed, self._found.pod).claim(claim)
        for error in verdict.errors:
            finding = problem(str(error.path or "claim"), error.text, expected="", cure="")
            self._found.findings.append(finding)
        claim = verdict.changed or claim
        if self._is_created and not any(
            finding.subject == pending.WEBHOOK for finding in self._found.findings
        ):
            events = self._observed.events_of(self._found.pod)
            self._found.findings.append(pending.claim_not_created(template_name, events=events))
        self._found.claims.append(claim)
        self._found.future.append(claim)


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


class Foreseen:
    """The webhook's verdicts on one pod.

    Its settings are not known here. A claim requests virtual amounts if the published devices have
    them, and isolation `hard` is allowed: the node refuses it if its enforcer has none.
    """

    def __init__(self, observed: Observed, pod: Document) -> None:
        ours = [each for each in observed.slices if each["spec"]["driver"] == names.DRIVER]
        self._pod: Final = pod
        self._admission: Final = Admission(
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

    def pod(self) -> Verdict:
        """Return the verdict on the pod."""
        return self._admission.pod(_review("", "Pod", self._pod))

    def claim(self, claim: Document) -> Verdict:
        """Return the verdict on a claim that was just created for the pod."""
        return self._admission.claim(_review(names.RESOURCE_GROUP, "ResourceClaim", claim))


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
