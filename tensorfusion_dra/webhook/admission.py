"""Decisions on admission requests: reads the relevant objects and applies the rules in core.

Pods get their share, claims their content, within the quotas of their namespace.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Final, Protocol

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import (
    at_present,
    claim_admission,
    class_admission,
    dialects,
    pod_admission,
    pod_findings,
    pod_request,
    pod_resources,
    quota,
)
from tensorfusion_dra.core.admission.cards import Cards
from tensorfusion_dra.core.admission.claim_admission import Classes
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.admission.pod_admission import PodContainer
from tensorfusion_dra.core.admission.pod_request import AnnotationError, PodRequest
from tensorfusion_dra.core.cel import user_guide
from tensorfusion_dra.core.claims import isolation, resize
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.ports import Objects, Pods
from tensorfusion_dra.core.claims.share_policy import ParameterError, ShareParameters
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import resource_claims, review, untyped_json
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.review import PASSED, Decision, Review
from tensorfusion_dra.core.kubernetes.untyped_json import as_map, map_at
from tensorfusion_dra.enforcers import registered

Item = Mapping[str, Any]

_WARNING_SECONDS: Final = 1.0
"""Longest time to read a pod for a warning alone."""


class CardReader(Protocol):
    """The cards that nodes publish in this driver's ResourceSlices."""

    def current(self) -> Cards:
        """Return the cards of all nodes as they were a moment ago.

        Raises:
            RetryableError: They were not read yet.
        """
        ...

    def selected(
        self,
        key: Hashable,
        select: Callable[[Item], Item],
        *,
        namespace: str,
        wait_seconds: float,
    ) -> Cards:
        """Return the cards that a function selects from each slice, as read in the last minutes.

        Args:
            key: Identifies the function: results are shared between functions with the same key.
            namespace: The pod's. A namespace with many requests waits only for its own.

        Raises:
            RetryableError: The API server answered with an error, or they are not known in a short
                while. Then they may be known soon.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPool:
    """A GPUPool's settings for its pods.

    Attributes:
        name: Name of the GPUPool; "" for pods without one.
        enabled: Whether its pods use DRA unless their annotations say otherwise; None if neither
            it nor its template says.
        template: Name of their ResourceClaimTemplate.
        isolations: Isolation modes that the pool may set for its nodes.
        document: The GPUPool; None if the nodes' settings name the pool.
        unknown: Why there is no such pool; "" if there is one.
    """

    name: str = ""
    enabled: bool | None = None
    template: str = names.CLAIM_TEMPLATE
    isolations: frozenset[Isolation] = frozenset()
    document: Item | None = None
    unknown: str = ""


def choose_pool(pools: Sequence[Item], templates: Iterable[Item], name: str) -> PodPool:
    """Return the settings of the pool of this name, or of the default pool if the name is "".

    If there are no GPUPools, the pools of nodes come from their settings. The pool's own draConfig
    takes precedence over the SchedulingConfigTemplate that it names. The CRDs of Tensor Fusion have
    neither field, so the API server drops them; those of the chart have both.

    The pool is unknown if none has this name; or if none is named, and not exactly one is the
    default.
    """
    if not pools:
        return PodPool(name=name)
    if name:
        found = [pool for pool in pools if _name(pool) == name]
        if not found:
            known = ", ".join(sorted(map(_name, pools))[:10])
            return PodPool(unknown=f"found {name!r}, expected a GPUPool such as {known}")
    else:
        found = [
            pool
            for pool in pools
            if review.annotations_of(pool).get(names.ANNOTATION_DEFAULT_POOL) == "true"
        ]
        if not found:
            return PodPool(
                unknown="found no name and no default GPUPool, expected the name of a GPUPool"
            )
        if len(found) > 1:
            several = ", ".join(sorted(map(_name, found)))
            return PodPool(
                unknown=f"found no name and the defaults {several}, expected one default GPUPool"
            )
    spec = as_map(found[0].get("spec"))
    own = as_map(spec.get("draConfig"))
    shared: Mapping[str, object] = {}
    for template in templates:
        if _name(template) == spec.get("schedulingConfigTemplate"):
            shared = map_at(template, "spec", "dra")
    enabled = shared.get("enable") if own.get("enable") is None else own.get("enable")
    template_name = "resourceClaimTemplateName"
    return PodPool(
        name=_name(found[0]),
        enabled=enabled if isinstance(enabled, bool) else None,
        template=str(own.get(template_name) or shared.get(template_name) or names.CLAIM_TEMPLATE),
        isolations=isolation.pool_modes(found[0]),
        document=found[0],
    )


def is_by_settings(name: str, pools: Sequence[Item], published: AbstractSet[str]) -> bool:
    """Return True if the pod's nodes got their pool from settings and not from a GPUPool.

    Pods have to get devices as nodes publish them. Example: node plugins with pool-source=settings
    publish `default`, and the cluster has the default GPUPool `prod` for Tensor Fusion's own
    scheduler. Then a pod may name `default`, and a pod that names none gets GPUs of every pool. A
    GPUPool that no node publishes may still get nodes, so a pod that names one waits.

    Args:
        name: The pool that the pod names; "" for none.
        pools: The cluster's GPUPools.
        published: The GPUPools that nodes publish.
    """
    known = set(map(_name, pools))
    if name:
        return name not in known and name in published
    return bool(published) and published.isdisjoint(known)


def _name(item: Item) -> str:
    return str(item["metadata"]["name"])


@dataclass(slots=True, kw_only=True)
class AdmissionRules:
    """Admission rules with one method for each webhook path, callable from any thread.

    Attributes:
        pools: GPUPools.
        templates: SchedulingConfigTemplates.
        scheduler: The scheduler that replaces Tensor Fusion's in pods with a share; "" keeps
            Tensor Fusion's.
        slices: The published cards of this driver.
        classes: DeviceClasses, which may name amounts for claims.
        quotas: GPUResourceQuotas, for the default amounts of pods; None for no defaults.
        has_priority_class: Returns whether there is a PriorityClass of a name, which pods without
            one then get. It may wait for the seconds, and raises RetryableError.
        keeps_cards_apart: Returns whether the cluster's scheduler gives each card of a request only
            once. Its argument is the seconds to wait; it raises RetryableError.
        claim_templates: The claim templates of annotated pods, one in each namespace that has it;
            None to warn of no missing one.
        on_warnings: Called with the warnings of a pod whose claim is created, or of a controller
            whose pod gets no claim, as an Event refers to it. It does not wait.
        warns_at_present: True to warn of what no card has at present.
        default_enabled: True if a pod with amounts uses DRA where nothing decides it.
        virtual: True if claims name virtual amounts as long as neither a published card nor a
            GPUPool shows which ones to name.
        enforces_hard: True if the nodes' enforcer has a limiter for hard isolation.
        names_containers: True if the nodes' enforcer has a limiter that needs its container's name.
    """

    pools: Objects
    templates: Objects
    pods: Pods
    slices: CardReader
    classes: Objects
    scheduler: str
    virtual: bool
    quotas: Objects | None = None
    has_priority_class: Callable[[str, float], bool] = lambda _name, _seconds: False
    keeps_cards_apart: Callable[[float], bool] = lambda _seconds: False
    claim_templates: Objects | None = None
    on_warnings: Callable[[Mapping[str, str], Sequence[str]], None] = lambda _about, _warnings: None
    warns_at_present: bool = False
    default_enabled: bool = False
    enforces_hard: bool = False
    names_containers: bool = False

    def pod(self, asked: Review) -> Decision:
        """Add the share to a new pod that requests one, if DRA is enabled for it.

        Requests in its containers' resources are read as annotations first, and errors name them.
        """
        if not asked.is_creation:
            return PASSED
        of_resources = pod_resources.read(asked.document)
        if of_resources.errors:
            return Decision(errors=of_resources.errors)
        if not pod_request.requests_gpu(review.annotations_of(of_resources.pod)):
            return PASSED
        found = self._shared(asked, of_resources.pod)
        if of_resources.pod is asked.document:
            return found
        texts = partial(pod_resources.renamed, pod=asked.document)
        return replace(
            found,
            errors=[replace(e, path=texts(e.path), text=texts(e.text)) for e in found.errors],
            warnings=[*map(texts, found.warnings)],
        )

    def _shared(self, asked: Review, pod: Item) -> Decision:
        """Return the decision on a new pod with annotations that request a share.

        Args:
            pod: The pod, with annotations in place of its resources.
        """
        annotations, wait_seconds = review.annotations_of(pod), asked.wait_seconds
        wanted = pod_request.parse(annotations)
        try:
            found = self._resolve(wanted, enabled=wanted.enabled)
            if not found.enabled:
                of_pod = pod_findings.without_effect(pod) if found.enabled is None else ()
                warnings = tuple(f"{each.found}; {each.remedy}" for each in of_pod)
                self._tell(asked, review.controller(pod, asked.namespace), warnings)
                return Decision(warnings=warnings)
            if self.quotas and not wanted.whole:
                quotas = of_namespace(_items(self.quotas), asked.namespace)
                if added := quota.defaults(quotas, annotations):
                    wanted = pod_request.parse({**annotations, **added})
            containers = pod_admission.containers(pod, wanted)
            takes_hard = self.enforces_hard or Isolation.HARD in found.isolations
            hard_needs = "" if takes_hard else registered.HARD_NEEDS
            errors = [
                *wanted.errors,
                *(() if wanted.has_amounts and pod is asked.document else pod_findings.mixed(pod)),
            ]
            if found.unknown:
                where = pod_request.path_of(names.ANNOTATION_GPUPOOL)
                errors.append(FieldError(where, Reason.NOT_FOUND, found.unknown))
            for annotation, selector in wanted.selectors.items():
                # The CEL library takes 20 MB of memory.
                from tensorfusion_dra.scheduling import cel_evaluation  # noqa: PLC0415

                if text := cel_evaluation.refusal(user_guide.translate(selector)):
                    where = pod_request.path_of(annotation)
                    errors.append(FieldError(where, Reason.INVALID, text))
            errors += pod_admission.errors(
                pod, wanted, containers, hard_needs=hard_needs, bypasses=registered.BYPASSES
            )
            if errors:
                return Decision(errors=errors)
            several = self._of_containers(asked, wanted, found.name)
            priority = pod_admission.priority_class(pod, wanted)
            if priority and not self.has_priority_class(priority, wait_seconds):
                priority = ""
        except RetryableError as error:
            return review.unavailable(error)
        except AnnotationError as error:
            annotation, text = error.annotation, error.text
            if (
                pod is asked.document
                and wanted.of_containers
                and annotation not in wanted.selectors
            ):
                annotation, text = names.ANNOTATION_CONTAINER_SHARES, str(error)
            return _refused(pod_request.path_of(annotation), text)
        # The amounts of several models are only in the claim, not in the pod's annotations.
        is_one = len(wanted.models or several[0]) == 1 and not wanted.of_containers
        wanted = several[0][0] if is_one else wanted
        return Decision(
            changed=pod_admission.admitted(
                pod,
                wanted,
                containers,
                pool=found.name,
                template=found.template,
                scheduler=self.scheduler,
                priority=priority,
                names_containers=self.names_containers,
            ),
            warnings=self._warnings(pod, several, containers, found, namespace=asked.namespace),
        )

    def _warnings(
        self,
        pod: Item,
        several: Sequence[Sequence[PodRequest]],
        containers: Sequence[PodContainer],
        found: PodPool,
        *,
        namespace: str,
    ) -> Sequence[str]:
        """Return what the pod's author should know, of the request and of the cluster at present.

        Args:
            several: The request of each container with a share of its own, or of the pod.
        """
        warnings = (
            [pod_admission.of_containers(registered.names_with("equal_only"))]
            if len(several) > 1
            else []
        )
        cards = None
        with suppress(RetryableError):
            cards = self.slices.current() if self.warns_at_present else None
        warnings += pod_admission.warnings(
            pod,
            [choices[0] for choices in several],
            containers,
            template=found.template,
            scheduler=self.scheduler,
        )
        if found.template == names.CLAIM_TEMPLATE and self.claim_templates is not None:
            with suppress(RetryableError):  # not known yet
                if not of_namespace(_items(self.claim_templates), namespace):
                    warnings.append(
                        f"namespace {namespace} has no ResourceClaimTemplate {found.template}, so "
                        "the pod waits for its claim"
                    )
        for choices in several:
            if cards is not None and not choices[0].expression:
                warnings += at_present.warnings(choices, cards, pool=found.name)
        return list(dict.fromkeys(warnings))

    def dialect(self, dialect: Dialect, asked: Review) -> Decision:
        """Translate a new pod from a dialect; its translation is then reviewed like any pod."""
        if not asked.is_creation:
            return PASSED
        pod = untyped_json.copied(asked.document)
        translated = dialects.translate(pod, {dialect})
        if refused := translated.refusals:
            return Decision(errors=[FieldError(p, Reason.INVALID, text) for p, text in refused])
        if not translated.annotations:
            return PASSED
        dialects.apply(pod, translated)
        words = [f"{each.name}: {each.text}" for each in translated.matches]
        return Decision(
            changed=pod, warnings=[*words, *(f"{dialect}: {n}" for n in translated.notes)]
        )

    def claim(self, asked: Review) -> Decision:
        """Fill a new claim: from Tensor Fusion's template with its pod's request, then with the
        amounts of its DeviceClasses.

        A pod exists before its claim. If the pod is missing, it was deleted and the claim is not
        needed, so the claim is refused. The claim controller handles that like any failure.

        A change of a claim's limits gets the label by which its node sees it.
        """
        if asked.operation == "UPDATE" and not asked.subresource:
            return self._resized(asked)
        if not asked.is_creation:
            return PASSED
        try:
            of_pod = self._of_pod(asked) if claim_admission.is_labelled(asked.document) else PASSED
            if of_pod.errors:
                return of_pod
            classes = parsed_classes(self.classes)
            found = self._of_classes(asked, of_pod.changed or asked.document, classes) or of_pod
        except RetryableError as error:
            return review.unavailable(error)
        return _checked_limits(asked, found, classes)

    def template(self, asked: Review) -> Decision:
        """Add the amounts of its DeviceClasses to a claim template, for queues that read it.

        Nothing is refused: the template's claims are filled and checked when they are created.
        """
        try:
            found = class_admission.of_template(
                asked.document, parsed_classes(self.classes), asked.old
            )
        except RetryableError:  # the classes are not known yet
            return PASSED
        except DriverError as error:
            return Decision(warnings=[f"{asked.kind}: {error}"])
        return Decision(changed=found) if found != asked.document else PASSED

    def _resized(self, asked: Review) -> Decision:
        metadata = asked.document["metadata"]
        labels = {**map_at(metadata, "labels"), **resize.label(asked.document)}
        changed = {**asked.document, "metadata": {**metadata, "labels": labels}}
        found = Decision(changed=changed) if labels != map_at(metadata, "labels") else PASSED
        try:
            return _checked_limits(asked, found, parsed_classes(self.classes))
        except RetryableError as error:
            return review.unavailable(error)

    def _of_pod(self, asked: Review) -> Decision:
        try:
            ref = claim_admission.owner(asked.document, asked.namespace)
        except InputError as error:
            return _refused("metadata.ownerReferences", error)
        try:
            pod = self.pods.find(ref, wait_seconds=asked.wait_seconds)
            if pod is None:
                return _refused(
                    "metadata.ownerReferences",
                    f"found no pod {ref} of UID {ref.uid}, expected the pod that the claim is for",
                )
            return self._filled(asked, pod, ref)
        except InputError as error:
            return _refused("", f"pod {ref}: {error}")

    def _of_classes(self, asked: Review, claim: Item, classes: Classes) -> Decision | None:
        """Return a decision on a claim that its classes change or refuse; None for another one.

        Raises:
            RetryableError: A class, or what is read for it, is not known at present.
        """
        named = {str(each.get("deviceClassName")) for each in resource_claims.requests(claim)}
        wait_seconds = asked.wait_seconds
        if missing := sorted(named - classes.keys() - {names.DEVICE_CLASS}):
            # A class is seen here a moment after its creation. The claim would take whole cards.
            raise RetryableError(
                f"found no DeviceClass {', '.join(missing)} with valid parameters, expected one"
            )
        before = claim
        try:
            claim = class_admission.tolerating(before, classes)
        except InputError as error:
            return _refused("spec.devices.requests", error)
        if not any(each.requests for each in map(classes.get, named) if each):
            return Decision(changed=claim) if claim != before else None
        apart = class_admission.several(claim, classes)
        splits = bool(apart) and not self.keeps_cards_apart(wait_seconds)
        if splits:
            with suppress(InputError):  # written by hand: its pods are not known
                owner = claim_admission.owner(claim, asked.namespace)
                pod = self.pods.find(owner, wait_seconds=wait_seconds) or {}
                if errors := [*class_admission.named_by_containers(pod, claim, apart)]:
                    return Decision(errors=errors)
        try:
            filled = class_admission.filled(claim, classes, apart, splits=splits)
        except DriverError as error:
            return _refused("spec.devices.requests", str(error))
        return Decision(changed=filled) if filled != before else None

    def warn_unnamed(self, asked: Review) -> None:
        """Warn the pod of a new claim if none of its containers names the claim."""
        annotations = asked.annotations
        entry = annotations.get(resource_claims.POD_CLAIM_ANNOTATION)
        # A claim of the template was filled here, and the webhook has containers name it.
        is_filled = claim_admission.is_labelled(asked.document)
        if not entry or is_filled or not asked.is_creation or asked.dry_run:
            return
        with suppress(InputError, RetryableError):
            owner = claim_admission.owner(asked.document, asked.namespace)
            seconds = min(asked.wait_seconds, _WARNING_SECONDS)
            pod = self.pods.find(owner, wait_seconds=seconds)
            found = pod_findings.unnamed(pod, [entry]) if pod else ()
            if warnings := [f"{each.subject}: {each.found}" for each in found]:
                self.on_warnings(owner.as_reference(), warnings)

    def parameters(self, asked: Review) -> Decision:
        """Refuse an object whose opaque parameters for this driver are invalid."""
        if asked.operation not in {"CREATE", "UPDATE"} or asked.subresource:
            return PASSED
        hard_needs = "" if self.enforces_hard else registered.HARD_NEEDS
        errors = claim_admission.errors(
            asked.kind, asked.document, asked.old, hard_needs=hard_needs
        )
        decision = Decision(errors=tuple(errors))
        if asked.is_creation and asked.kind != claim_admission.CLASS:
            with suppress(RetryableError):  # not known yet; the node compares the limits again
                return _checked_limits(asked, decision, parsed_classes(self.classes))
        return decision

    def _filled(self, asked: Review, pod: Item, ref: PodRef) -> Decision:
        """Return a decision that fills the claim with its pod's request.

        Raises:
            InputError: The pod's annotations, its pool or the claim are invalid.
            RetryableError: The pools or the slices are not known at present.
        """
        annotations = review.annotations_of(pod)
        if not pod_request.requests_gpu(annotations):
            return PASSED
        wanted = pod_request.parse(annotations)
        if wanted.errors:
            raise InputError("; ".join(map(str, wanted.errors)))
        found = self._resolve(wanted, enabled=True)
        if found.unknown:
            raise InputError(found.unknown)
        virtual = self.virtual
        if found.document is not None:
            virtual = gpupool.parse(found.document).oversubscription is not None
        several = self._of_containers(asked, wanted, found.name)
        with_kinds = several
        if any(not each.whole and (each.tflops or each.vram) for of in several for each in of):
            cards = self.slices.current()
            with_kinds = [
                pod_request.by_kind(each, cards, pool=found.name, virtual=virtual)
                for each in several
            ]
        if wanted.of_containers:
            filled = claim_admission.filled_by_container(
                asked.document,
                with_kinds,
                pool=found.name,
                equal_only=registered.names_with("equal_only"),
            )
        else:
            filled = claim_admission.filled(asked.document, with_kinds[0], pool=found.name)
        containers = pod_admission.containers(pod, wanted)
        warnings = self._warnings(pod, several, containers, found, namespace=asked.namespace)
        self._tell(asked, ref.as_reference(), warnings)
        return Decision(changed=filled)

    def _tell(self, asked: Review, about: Mapping[str, str], warnings: Sequence[str]) -> None:
        if about and warnings and not asked.dry_run:
            self.on_warnings(about, warnings)

    def _resolve(self, wanted: PodRequest, *, enabled: bool | None) -> PodPool:
        """Return the pool that the pod's devices come from, and whether DRA is enabled there.

        Nodes may also be in their pools by settings, beside GPUPools.

        Args:
            enabled: Whether DRA is enabled; None leaves that to the pool.

        Raises:
            RetryableError: The pools or the slices are not known at present.
        """
        pools = _items(self.pools)
        found = choose_pool(pools, _items(self.templates) if pools else (), wanted.pool)
        if enabled is None and found.enabled is None and self.default_enabled:
            enabled = wanted.has_amounts
        found = found if enabled is None else replace(found, enabled=enabled)
        if found.enabled and pools and (found.unknown or not wanted.pool):
            published = self.slices.current()
            named = published.pools() if wanted.pool else published.usual_pools()
            if is_by_settings(wanted.pool, pools, named):
                return replace(found, name=wanted.pool, document=None, unknown="")
        return found

    def _of_containers(
        self, asked: Review, wanted: PodRequest, pool: str
    ) -> Sequence[Sequence[PodRequest]]:
        """Return the alternatives of each container with a share of its own, or of the pod.

        They are in amounts. Slices are read only for requests in percent, and selected from once:
        a selector is the whole pod's.

        Raises:
            AnnotationError: The cards that the pod can get differ, or there is none; or a selector
                takes too long.
            RetryableError: The slices are not known at present.
        """
        several, cards = wanted.of_containers or (wanted,), Cards()
        if any(each.percentages for each in several):
            cards, selections = self.slices.current(), []
            for annotation, selector in wanted.selectors.items():
                from tensorfusion_dra.scheduling import cel_evaluation  # noqa: PLC0415

                text, count = user_guide.translate(selector), cards.number()
                try:
                    selections.append(cel_evaluation.selecting(text, count=count))
                except InputError as error:
                    raise AnnotationError(annotation, str(error)) from error
            if selections:
                cards = self.slices.selected(
                    tuple(wanted.selectors.values()),
                    lambda item: reduce(lambda found, select: select(found), selections, item),
                    namespace=asked.namespace,
                    wait_seconds=asked.wait_seconds,
                )
        return [pod_request.alternatives(each, cards, pool=pool) for each in several]


def _items(objects: Objects) -> Sequence[Item]:
    """Return the cached objects; empty if the cluster does not have the kind."""
    try:
        return objects.items()
    except InputError:
        return ()


def parsed_classes(classes: Objects) -> dict[str, ShareParameters | None]:
    """Return each DeviceClass's parameters for this driver, without those that no node accepts."""
    found = {}
    for each in _items(classes):
        with suppress(ParameterError):
            found[_name(each)] = class_admission.of_class(each)
    return found


def _checked_limits(asked: Review, decision: Decision, classes: Classes) -> Decision:
    """Return the decision on a new claim or template, or the refusal of its limits.

    No node prepares a claim with a limit, of its own or of its classes, below the request.
    """
    if decision.errors:
        return decision
    claim, path = decision.changed or asked.document, claim_admission.CONFIG_PATHS[asked.kind]
    if asked.kind != "ResourceClaim":
        claim = as_map(claim.get("spec"))
    where = ".".join((*path[:-1], "requests"))
    try:
        errors = [*claim_admission.below_request(claim, where, classes)]
    except DriverError as error:
        return _refused("", str(error))
    return Decision(errors=errors) if errors else decision


def of_namespace(objects: Iterable[Item], namespace: str) -> list[Item]:
    return [each for each in objects if each["metadata"]["namespace"] == namespace]


def _refused(path: str, error: InputError | str) -> Decision:
    return Decision(errors=[FieldError(path, Reason.INVALID, str(error))])
