"""The answer of `why`: one sentence, what would help, and the nodes, alike ones in one line.

A smaller request and pods that are in the way are proposed only if the allocation itself succeeds
with them.
"""

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.admission.pod_findings import ANNOTATIONS, CONTAINERS
from tensorfusion_dra.core.cel import syntax
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.finding import Finding, Level
from tensorfusion_dra.core.kubernetes import quantity, releases, resource_claims, review
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import map_at
from tensorfusion_dra.scheduling import devices, placement
from tensorfusion_dra.scheduling.allocation import UNSATISFIED
from tensorfusion_dra.scheduling.devices import Cause, Holder, Rejection, Usage, Wanted
from tensorfusion_dra.scheduling.placement import NodeClusters, NodeOutcome, Trial, TriedCard

Document = Mapping[str, Any]

BIND_ROLE: Final = (
    "An administrator can bind the ClusterRole tensorfusion-dra-why to this account with a "
    "ClusterRoleBinding; for the webhook's pods the chart's value webhook.why does."
)
"""Remedy for a permission that is missing."""
WEBHOOK: Final = "webhook"
"""Subject of the findings about a pod without the claim that its annotations request."""
_NO_GPU: Final = frozenset({WEBHOOK, ANNOTATIONS, CONTAINERS})
"""Subjects of problems of pods that Kubernetes schedules, and that run without a GPU."""

_MAX_NODES: Final = 8
"""Of more nodes, only groups are shown."""
_SHOWN_NAMES: Final = 2
_SHOWN_HOLDERS: Final = 4
_SHOWN_HELPS: Final = 6
_SHOWN_NODES: Final = 3
_LOOKUP: Final = re.compile(
    rf'device\.(?:{syntax.ATTRIBUTES}|{syntax.CAPACITY})\["{re.escape(names.DRIVER)}"\]\.\??'
)
_SHOWN_REASONS: Final = 3
_SINGULAR: Final = {"are": "is", "do": "does", "fit": "fits", "have": "has", "use": "uses"}
_PLURAL: Final = {singular: plural for plural, singular in _SINGULAR.items()}
_NEAREST: Final = (
    Cause.TAINT,
    Cause.CAPACITY,
    Cause.EXCLUSIVE,
    Cause.AMOUNT,
    Cause.SELECTOR,
    Cause.UNSUPPORTED,
)
"""Causes of rejections, the one nearest to a fit first: a tainted card passed all other checks. One
that is in use exclusively comes before one that does not match, because it may become free."""
_CAUSE_TEXTS: Final = {
    Cause.TAINT: "are tainted {}",
    Cause.CAPACITY: "have too little free {}",
    Cause.EXCLUSIVE: "are in use exclusively",
    Cause.AMOUNT: "do not offer the requested {}",
    Cause.SELECTOR: "do not match {}",
    Cause.UNSUPPORTED: "use {}, which is not supported",
}
"""Text of each cause for several devices; its subject is inserted."""
_TRIED_CARDS: Final = 40
"""Number of cards on which proposals are tried, the most promising first."""
_ANNOTATION_OF: Final = {
    names.CAPACITY_TFLOPS: names.ANNOTATION_TFLOPS_REQUEST,
    names.CAPACITY_VRAM: names.ANNOTATION_VRAM_REQUEST,
}
_ANNOTATION_OF_ATTRIBUTE: Final = {
    names.ATTR_MODEL: names.ANNOTATION_GPU_MODEL,
    names.ATTR_POOL_NAME: names.ANNOTATION_GPUPOOL,
    names.ATTR_QOS: names.ANNOTATION_QOS,
}


class PodState(StrEnum):
    """The answer in one word."""

    FITS = "fits"
    """A node has what the pod requests; the scheduler places it at its next try."""
    BOUND = "bound"
    """The pod has a node already, or is done."""
    STUCK = "stuck"
    """The pod has a node, and its kubelet cannot start it."""
    WAITS = "waits"
    """The pod cannot be scheduled now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of `why` for a pod.

    Attributes:
        answer: One sentence.
        helps: What would help, the quickest first.
        findings: Faults that are not about free devices.
        outcomes: The nodes; empty if the pod was not tried on them.
        unchecked: What could not be read for want of a right, or checked without the CEL library.
        release: Minor version of Kubernetes by whose rules devices were allocated.
    """

    pod: str
    state: PodState
    answer: str
    helps: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    outcomes: Sequence[NodeOutcome] = field(default=())
    unchecked: Sequence[str] = ()
    release: int = releases.NEWEST

    @property
    def gates(self) -> list[str]:
        """Feature gates on which the answer relies, all on by default."""
        return [gate for gate, since in releases.GATES.items() if self.release >= since]


def bound(pod: str, node: str, phase: str, reason: str, findings: Sequence[Finding]) -> str:
    """Return the answer for a pod that has a node, or is done.

    Args:
        reason: What an Event says of the pod's start; "" if none says anything.
        findings: Faults of the pod and its claims.
    """
    if phase in ("Succeeded", "Failed"):
        answer = f"{pod} is done: {phase}."
    elif phase == "Running":
        answer = f"{pod} runs on {node}."
    elif reason:
        answer = f"{pod} is scheduled on {node} already; it waits there: {reason}"
    else:
        answer = (
            f"{pod} is scheduled on {node} already; it waits there for something else: "
            "kubectl describe pod shows its Events, tensorfusion-dra doctor checks the node."
        )
    if not findings:
        return answer
    first = f"{findings[0].subject}: {findings[0].found}".removesuffix(".")
    what = "It got no GPU: " if _is_without_gpu(findings[0]) else "But "
    more = f" ({len(findings)} findings in all)" if len(findings) > 1 else ""
    return f"{answer.removesuffix('.')}. {what}{first}{more}."


def blocked(
    pod: str, problems: Sequence[Finding], trial: Trial, outcomes: Sequence[NodeOutcome]
) -> str:
    """Return the answer for a pod that cannot be scheduled, whatever is free.

    Args:
        outcomes: What each node would give if the problems were solved; empty if not known.
    """
    first = problems[0]
    more = f" ({len(problems)} findings in all)" if len(problems) > 1 else ""
    cannot = "gets no GPU" if _is_without_gpu(first) else "cannot be scheduled"
    answer = f"{pod} {cannot}: {first.subject}: {first.found}{more}."
    if not outcomes or any(each.error for each in outcomes):
        return answer
    if any(each.fits for each in outcomes):
        return f"{answer} Otherwise it fits now on {node_names(outcomes)}."
    return f"{answer} Nor is there room: {_shortage(trial, outcomes)}."


def _is_without_gpu(finding: Finding) -> bool:
    return finding.subject in _NO_GPU and finding.level is Level.PROBLEM


def fits(pod: str, outcomes: Sequence[NodeOutcome], *, has_claims: bool) -> str:
    """Return the answer for a pod that fits."""
    where = node_names(outcomes)
    if not has_claims:
        return f"{pod} requests no GPU by a claim; nothing that was checked keeps it from {where}."
    cards = next(each.picked_names for each in outcomes if each.fits)
    return f"{pod} fits now on {where}{f' ({cards})' if cards else ''}."


def unfit(pod: str, trial: Trial, outcomes: Sequence[NodeOutcome]) -> str:
    """Return the answer for a pod that no node has room for."""
    errors = [each.error for each in outcomes if each.error]
    if errors:
        return f"{pod} cannot be scheduled on any node: {errors[0]}."
    if not outcomes:
        return f"{pod} cannot be scheduled: the cluster has no nodes."
    return f"{pod} waits: {_shortage(trial, outcomes)}."


def _shortage(trial: Trial, outcomes: Sequence[NodeOutcome]) -> str:
    """Return what the pod requests and no node has."""
    tried = [each for each in outcomes if not each.refusal]
    if not tried:
        return f"no node is fit for it: {_of_nodes(each.refusal for each in outcomes)}"
    wanted = dict(placement.wanted_devices(trial.waiting))
    cards = [card for each in tried for card in each.cards]
    refused = len(outcomes) - len(tried)
    verb = "is" if refused == 1 else "are"
    beside = f" ({refused} of {len(outcomes)} nodes {verb} unfit anyway)" if refused else ""
    if not cards:
        why = _of_nodes(reason for each in tried for reason in each.reasons)
        why = why or f"they have no device of DeviceClass {_classes(wanted, wanted)}"
        return f"no node that it may use has a usable device: {why}{beside}"
    needed = placement.number_of_cards(trial.waiting)
    largest = max(tried, key=lambda each: len(each.cards))
    if len(largest.cards) < needed:
        return f"no node has {needed} cards: {largest.name} has most, {len(largest.cards)}{beside}"
    every = list(placement.alternatives(trial.waiting))
    passed = {name for card in cards for name, found in card.rejections.items() if found is None}
    for hopeless in filter(passed.isdisjoint, every):
        claim, request, *_ = hopeless[0].split("/")
        which = f"for request {claim}/{request}, " if len(set(every)) > 1 else ""
        return f"{which}{_none_of(cards, hopeless, wanted)}{beside}"
    most = max(tried, key=lambda each: sum(card.passes for card in each.cards))
    number = sum(card.passes for card in most.cards)
    asked = placement.number_of_devices(trial.waiting)
    rest = _causes(map(nearest, most.cards))
    if not rest and number >= (asked or 1):
        notes = _counted(card.note for card in most.cards if card.note.startswith(UNSATISFIED))
        rest = f"but {notes}" if notes else ""
    its_cards = (
        "its card" if asked == 1 else f"{f'its {asked}' if asked else 'all its'} cards at once"
    )
    fit = "fits" if number == 1 else "fit"
    return (
        f"no node has {its_cards}: most are on {most.name}, where {number} of {len(most.cards)} "
        f"{fit} alone{', ' + rest if rest else ''}{beside}"
    )


def _none_of(
    cards: Sequence[TriedCard], request: Sequence[str], wanted: Mapping[str, Wanted]
) -> str:
    """Return why no card passes a request, with a number if there are several cards."""
    of_class = [
        [card.rejections[name] for name in request if name in card.rejections] for card in cards
    ]
    found = [_nearest(rejections) for rejections in of_class if rejections]
    if not found:
        return f"no node that it may use has a device of DeviceClass {_classes(wanted, request)}"
    of_request = [card for card in cards if not card.rejections.keys().isdisjoint(request)]
    beyond = _beyond(of_request, [wanted[name].amounts for name in request])
    if len(found) == 1 and found[0] is not None:
        _, _, cause = numbered(1, cause_text(found[0])).partition(" ")
        return f"the only card {cause}{beyond}"
    return f"none of {len(found)} cards fits: {_causes(found)}{beyond}"


def _beyond(cards: Sequence[TriedCard], asked: Sequence[Mapping[str, Quantity]]) -> str:
    """Return the requested capacity that no card has, even if free, or not as much; "" for none.

    Args:
        asked: The amounts of each alternative of a request.
    """
    offered: dict[str, Quantity] = {}
    for card in cards:
        for name, capacity in card.device.capacity.items():
            offered[name] = max(capacity.value, offered.get(name, capacity.value))
    for name in asked[0]:
        if name not in offered:
            return f"; the cards have {', '.join(offered)}"
        if all(amounts.get(name, Quantity(0)) > offered[name] for amounts in asked):
            return f"; the largest card has {name} {streams.shown(offered[name], name)}"
    return ""


def _classes(wanted: Mapping[str, Wanted], request: Iterable[str]) -> str:
    """Return the DeviceClasses of the alternatives of a request."""
    return " or ".join(dict.fromkeys(wanted[name].device_class for name in request))


def node_names(outcomes: Sequence[NodeOutcome]) -> str:
    """Return the names of the nodes that fit, the first ones and the number of the others."""
    return printable.first([each.name for each in outcomes if each.fits], _SHOWN_NODES)


def nearest(card: TriedCard) -> Rejection | None:
    """Return the rejection that is nearest to a fit; None if the card passes a request."""
    return None if card.passes else _nearest(card.rejections.values())


def _nearest(rejections: Iterable[Rejection | None]) -> Rejection | None:
    found = [each for each in rejections if each is not None]
    return min(found, key=lambda each: _NEAREST.index(each.cause), default=None)


def cause_text(rejection: Rejection) -> str:
    """Return the text of a rejection's cause, without the values of its device."""
    return _CAUSE_TEXTS[rejection.cause].format(short(rejection.subject)) + rejection.beside


def short(expression: str) -> str:
    """Return an expression with this driver's attributes by name only: ``model == "A100"``.

    The default ``.orValue("")`` of the webhook's selectors is dropped as well.
    """
    return _LOOKUP.sub("", expression).replace('.orValue("")', "")


def numbered(count: int, text: str) -> str:
    """Return a cause with the number of its devices: ``1 is tainted``, ``2 are tainted``."""
    verb, space, rest = text.partition(" ")
    return f"{count} {(_SINGULAR if count == 1 else _PLURAL).get(verb, verb)}{space}{rest}"


def _causes(rejections: Iterable[Rejection | None]) -> str:
    """Return the causes of cards' rejections with their numbers, the nearest to a fit first."""
    found = [each for each in rejections if each is not None]
    return _counted(map(cause_text, sorted(found, key=lambda each: _NEAREST.index(each.cause))))


def _counted(texts: Iterable[str]) -> str:
    """Return the texts about single cards with their numbers; the rarest are left out."""
    return _joined(Counter(texts), lambda text, count: numbered(count, text), ", ")


def _of_nodes(texts: Iterable[str]) -> str:
    """Return the texts about single nodes with their numbers; the rarest are left out."""
    return _joined(
        Counter(texts), lambda text, count: text if count == 1 else f"{text} ({count} nodes)", "; "
    )


def _joined(counts: Counter[str], shown: Callable[[str, int], str], separator: str) -> str:
    kept = dict(counts.most_common(_SHOWN_REASONS))
    texts = [shown(text, count) for text, count in counts.items() if text in kept]
    more = len(counts) - len(kept)
    reasons = "reason" if more == 1 else "reasons"
    return separator.join([*texts, f"{more} other {reasons}"] if more > 0 else texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A card that only its tenants keep from a request.

    Attributes:
        taken: Sum of the tenants' shares, by capacity.
        amounts: What the request would consume, by capacity.
        share: Free part of what is requested, of the scarcest capacity; 0 to 1.
    """

    node: Document
    card: TriedCard
    wanted: Wanted
    taken: Mapping[str, Quantity]
    amounts: Mapping[str, Quantity]
    share: float


def helps(
    trial: Trial,
    clusters: NodeClusters,
    nodes: Sequence[Document],
    outcomes: Sequence[NodeOutcome],
) -> Iterator[str]:
    """Yield what would help, the quickest first: less, pods that are in the way, other values."""
    if any(each.error for each in outcomes):
        return
    by_name = {str(node["metadata"]["name"]): node for node in nodes}
    found = [
        candidate
        for outcome in outcomes
        for candidate in _candidates(outcome, trial, by_name[outcome.name], clusters.whole.release)
    ]
    candidates = sorted(found, key=lambda each: -each.share)[:_TRIED_CARDS]
    yield from _smaller(trial, clusters, candidates)
    yield from _in_the_way(trial, clusters, candidates)
    spec = trial.pod["spec"]
    if candidates and (spec.get("priority") or spec.get("priorityClassName")):
        yield "Its priority does not help: Kubernetes preempts no pods for the devices of claims."
    yield from _other_values(trial, outcomes)


def amounts(holder: Holder) -> str:
    """Return what a holder has of its device."""
    if holder.amounts is None:
        return "the whole device"
    return ", ".join(
        f"{name} {streams.shown(amount, name)}"
        for name, amount in holder.amounts.items()
        if amount.nano
    )


def _candidates(
    outcome: NodeOutcome, trial: Trial, node: Document, release: int
) -> Iterator[_Candidate]:
    asked = dict(placement.wanted_devices(trial.waiting))
    for card in outcome.cards:
        used = Usage()
        for holder in card.holders:
            used.add(card.device.id, holder)
        taken = used.taken(card.device.id)
        for request, rejection in card.rejections.items():
            if rejection is None or rejection.cause not in (Cause.CAPACITY, Cause.EXCLUSIVE):
                continue
            capacity = card.device.capacity
            amounts = devices.consumed(asked[request].amounts, card.device, release)
            shares = [
                (capacity[name].value - taken.get(name, Quantity(0))).nano / amount.nano
                for name, amount in amounts.items()
                if amount.nano
            ]
            yield _Candidate(
                node=node,
                card=card,
                wanted=asked[request],
                taken=taken,
                amounts=amounts,
                share=0.0 if used.is_exclusive(card.device.id) else min([1.0, *shares]),
            )


def _fits(
    trial: Trial, clusters: NodeClusters, node: Document, *, gone: Sequence[Holder] = ()
) -> bool:
    near = clusters.at(str(node["metadata"]["name"]))
    keys = {(holder.namespace, holder.claim) for holder in gone}
    left = tuple(
        claim
        for claim in near.claims
        if (str(claim["metadata"].get("namespace", "")), claim["metadata"]["name"]) not in keys
    )
    return placement.outcome(trial, replace(near, claims=left), node).fits


def _smaller(
    trial: Trial, clusters: NodeClusters, candidates: Sequence[_Candidate]
) -> Iterator[str]:
    """Yield the largest smaller request that fits somewhere now, if there is one."""
    annotated = review.annotations_of(trial.pod)
    is_annotated = pod_request.requests_gpu(annotated)
    for candidate in candidates:
        if candidate.share <= 0 or not candidate.card.device.is_shared:
            continue
        wanted, reduced = candidate.wanted, _reduced(candidate)
        claims = [
            _with_amounts(claim, wanted, {**wanted.amounts, **reduced}) for claim in trial.claims
        ]
        if not _fits(replace(trial, claims=claims), clusters, candidate.node):
            continue
        texts = []
        for name, amount in reduced.items():
            annotation = _ANNOTATION_OF.get(name.removeprefix("virtual_"), "")
            given_as = f"{annotation}:" if is_annotated and annotation else name
            texts.append(f"{given_as} {streams.shown(amount, name)}")
        is_only = len(list(placement.wanted_devices(trial.waiting))) == 1
        of_request = "" if is_only else f" in request {wanted.name}"
        is_whole = is_annotated and pod_request.parse(annotated).whole
        instead = " instead of whole cards" if is_whole else ""
        node = candidate.node["metadata"]["name"]
        yield f"Request less{of_request}: {', '.join(texts)}{instead} fits now on {node}."
        return


def _reduced(candidate: _Candidate) -> dict[str, Quantity]:
    """Return what is free of each capacity of which the request takes more."""
    capacity, reduced = candidate.card.device.capacity, {}
    for name, amount in candidate.amounts.items():
        free = capacity[name].value - candidate.taken.get(name, Quantity(0))
        if amount > free:
            # Memory in whole MiB.
            rest = free.nano % (MIB * NANO) if free.family == "binary" else 0
            reduced[name] = Quantity(free.nano - rest, free.family)
    return reduced


def _with_amounts(claim: Document, wanted: Wanted, amounts: Mapping[str, Quantity]) -> Document:
    """Return the claim with these amounts in every request that asks for what this one does."""
    if (claim.get("status") or {}).get("allocation"):
        return claim
    result = copy.deepcopy(dict(claim))
    for _, exact in resource_claims.every_request(result):
        named = map_at(exact, "capacity", "requests")
        asks = {name: quantity.parse(text) for name, text in named.items()}
        if (exact["deviceClassName"], asks) == (wanted.device_class, wanted.amounts):
            exact["capacity"] = {"requests": quantity.texts(amounts)}
    return result


def _in_the_way(
    trial: Trial, clusters: NodeClusters, candidates: Sequence[_Candidate]
) -> Iterator[str]:
    """Yield the fewest holders of one card without which the pod fits, if there are any.

    Of the same number, those of the card with the most free.
    """

    def size(holder: Holder) -> int:
        # A small share sorts before a large one; exclusive ones are last.
        if holder.amounts is None:
            return 2**200
        return max((amount.nano for amount in holder.amounts.values()), default=0)

    best: tuple[Holder, ...] = ()
    text = ""
    for candidate in candidates:
        held = sorted((each for each in candidate.card.holders if not each.is_admin), key=size)
        several = [tuple(reversed(held[-count:])) for count in range(2, len(held) + 1)]
        for gone in [*((holder,) for holder in held), *several]:
            if best and len(gone) >= len(best):
                break
            if _fits(trial, clusters, candidate.node, gone=gone):
                best = gone
                them = " and ".join(f"{each.text} ({amounts(each)})" for each in gone)
                where = f"{candidate.card.device.id.device} of {candidate.node['metadata']['name']}"
                without = "it" if len(gone) == 1 else "them"
                text = f"Wait for {them} on {where}: without {without} the pod fits there."
    if text:
        yield text


def _other_values(trial: Trial, outcomes: Sequence[NodeOutcome]) -> Iterator[str]:
    """Yield the values that cards have, where no card has what a selector demands."""
    for request, _ in placement.wanted_devices(trial.waiting):
        cards = [card for each in outcomes for card in each.cards if request in card.rejections]
        rejected = [card.rejections[request] for card in cards]
        if not cards or any(each is None or each.cause is not Cause.SELECTOR for each in rejected):
            continue
        subjects = Counter(each.subject for each in rejected if each is not None)
        for subject, _ in subjects.most_common(_SHOWN_REASONS):
            yield from _values(subject, cards, trial)


def _values(subject: str, cards: Sequence[TriedCard], trial: Trial) -> Iterator[str]:
    try:
        term = syntax.terms(subject)
    except CelError:
        return
    annotated = review.annotations_of(trial.pod)
    for lookup in term.lookups:
        name, found = lookup.name, placement.values(lookup, [card.device for card in cards])
        values = ", ".join(
            f"{value} ({count})" for value, count in found.most_common(_SHOWN_REASONS + 1)
        )
        annotation = _ANNOTATION_OF_ATTRIBUTE.get(name, "")
        wanted = annotated.get(annotation)
        if name == names.ATTR_PHASE and list(found) == [names.PHASE_UNKNOWN]:
            yield "Repair the cards: the driver publishes them as unhealthy (phase Unknown)."
        elif wanted and names.ANNOTATION_CEL_EXPRESSION not in annotated:
            # The claim may be older than the annotation, and have another value.
            if any(syntax.quoted(each.strip()) in subject for each in wanted.split(",")):
                yield f"Correct {annotation}: found {wanted}, but the cards have: {values}."
        else:
            yield f"Correct the selector {short(subject)}: the cards have {name}: {values}."


def lines(found: Diagnosis, *, is_wide: bool) -> Iterator[str]:
    """Return the lines of a diagnosis, with short names of cards.

    Characters that a terminal would execute are escaped.
    """
    cut = streams.short_names(
        [card.device.id.device for each in found.outcomes for card in each.cards]
        + [device.device for each in found.outcomes for device in each.picked or ()]
    )
    helps = found.helps[:_SHOWN_HELPS]
    others = [
        line
        for each in found.findings
        if f"{each.subject}: {each.found}" not in found.answer
        for line in (
            f"  {each.level.value}: {each.subject}: {each.found}",
            f"    cure: {each.remedy}" if each.remedy and each.remedy not in helps else "",
        )
        if line
    ]
    tried = [outcome for outcome in found.outcomes if not outcome.error]
    rows = _grouped(tried) if len(tried) > _MAX_NODES else _each(tried, cut)
    nodes = streams.table(
        [("NODE", "CARD", "WHY NOT", "HELD BY"), *rows], indent="", is_wide=is_wide
    )
    text = streams.sections(
        [_cut(found.answer, cut)],
        ["What helps", *(f"  - {_cut(text, cut)}" for text in helps)] if helps else (),
        ["Also found", *others] if others else (),
        nodes if any(not outcome.fits for outcome in tried) else (),
        [f"Not checked: {', '.join(found.unchecked)}."] if found.unchecked else (),
        [
            f"This is how Kubernetes 1.{found.release} allocates devices"
            f"{' with the feature gates ' * bool(found.gates)}{' and '.join(found.gates)}; "
            "CPU, memory, ports, volumes and affinity between pods are not checked here."
        ]
        if found.outcomes
        else (),
    )
    return map(printable.one_line, text)


def document(found: Diagnosis) -> Mapping[str, Any]:
    """Return a diagnosis for programs."""
    return {
        "pod": found.pod,
        "state": found.state.value,
        "answer": found.answer,
        "helps": list(found.helps),
        "findings": [finding.as_json() for finding in found.findings],
        "nodes": [
            {
                "name": outcome.name,
                "fits": outcome.fits,
                "reason": "" if outcome.fits else outcome.refusal or outcome.error,
                "devices": [str(device) for device in outcome.picked or ()],
                "pools": list(outcome.reasons),
                "cards": [
                    {
                        "pool": card.device.id.pool,
                        "device": card.device.id.device,
                        "requests": {
                            request: None
                            if rejection is None
                            else {
                                "cause": rejection.cause.value,
                                "subject": rejection.subject,
                                "text": rejection.text,
                            }
                            for request, rejection in card.rejections.items()
                        },
                        "note": card.note,
                        "holders": [
                            {
                                "namespace": each.namespace,
                                "claim": each.claim,
                                "pods": list(each.consumers),
                                "amounts": None
                                if each.amounts is None
                                else {name: str(found) for name, found in each.amounts.items()},
                            }
                            for each in card.holders
                        ],
                    }
                    for card in outcome.cards
                ],
            }
            for outcome in found.outcomes
        ],
        "unchecked": list(found.unchecked),
        "release": f"1.{found.release}",
        "gates": found.gates,
    }


def _cut(text: str, cut: Mapping[str, str]) -> str:
    for name, begin in cut.items():
        text = text.replace(name, begin)
    return text


def _each(outcomes: Sequence[NodeOutcome], cut: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """Yield a row for each card; cards of a node that are alike share one."""
    for outcome in outcomes:
        if not outcome.cards:
            yield outcome.name, "", _cut(_node_text(outcome), cut), ""
            continue
        rows: dict[tuple[str, str], list[str]] = {}
        for card in outcome.cards:
            key = (short(_card_text(card)), _holders_text(card))
            rows.setdefault(key, []).append(cut[card.device.id.device])
        name = outcome.name
        for (why, held), cards in rows.items():
            yield name, printable.first(cards, _SHOWN_NAMES), why, held
            name = ""


def _grouped(outcomes: Sequence[NodeOutcome]) -> Iterator[Sequence[str]]:
    """Yield a row for each group of nodes with the same reasons, the largest group first."""
    groups: dict[tuple[str, ...], list[NodeOutcome]] = {}
    for outcome in outcomes:
        kinds = sorted(set(map(_kind, outcome.cards))) or [_node_text(outcome)]
        groups.setdefault(tuple(kinds), []).append(outcome)
    for reasons, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        counts = Counter(reason for each in members for reason in map(_kind, each.cards))
        cards = sum(len(each.cards) for each in members)
        name = f"{len(members)}: {printable.first([each.name for each in members], _SHOWN_NAMES)}"
        if cards:
            why = ", ".join(numbered(count, reason) for reason, count in counts.most_common())
        else:
            why = ", ".join(reasons)
        yield name, str(cards or ""), why, ""


def _kind(card: TriedCard) -> str:
    rejection = nearest(card)
    return "fit alone" if rejection is None else cause_text(rejection)


def _node_text(outcome: NodeOutcome) -> str:
    if outcome.fits:
        return f"fits: {outcome.picked_names}" if outcome.picked_names else "fits"
    return outcome.refusal or "; ".join(outcome.reasons) or "has no device of the requested class"


def _card_text(card: TriedCard) -> str:
    """Return why a card is rejected, for each request if they differ."""
    texts = {
        request: "fits alone"
        if rejection is None
        else streams.with_points(rejection.text)
        if rejection.cause in (Cause.CAPACITY, Cause.AMOUNT)
        else rejection.text
        for request, rejection in card.rejections.items()
    }
    if card.note and not any(card.rejections.values()):
        return f"fits alone, but with the pod's other cards: {streams.with_points(card.note)}"
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{request}: {text}" for request, text in texts.items())


def _holders_text(card: TriedCard) -> str:
    """Return the tenants of a card, if they are why it is rejected, with what they have of it."""
    rejection = nearest(card)
    if rejection is None or rejection.cause not in (Cause.CAPACITY, Cause.EXCLUSIVE):
        return ""
    shares = []
    for holder in (each for each in card.holders if not each.is_admin):
        amount = (holder.amounts or {}).get(rejection.subject)
        text = amounts(holder) if amount is None else streams.shown(amount, rejection.subject)
        shares.append(f"{holder.text} ({text})")
    return printable.first(shares, _SHOWN_HOLDERS)
