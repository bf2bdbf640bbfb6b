"""What would let a pod fit that no node has room for, as sentences.

A smaller request and pods that are in the way are proposed only if the allocation itself succeeds
with them.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.app.shared.tables import shown
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.cel import terms
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.kubernetes import quantity, review
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity
from tensorfusion_dra.scheduling import placement, rejections, usage
from tensorfusion_dra.scheduling.placement import Card, NodeClusters, NodeOutcome, Trial
from tensorfusion_dra.scheduling.rejections import Cause
from tensorfusion_dra.scheduling.requests import Wanted
from tensorfusion_dra.scheduling.usage import Holder

Document = Mapping[str, Any]

_SHOWN: Final = 3
_TRIED_CARDS: Final = 40
"""Cards on which proposals are tried, the most promising first."""
_ROUNDED_DOWN_TO: Final = MIB * NANO
_ANNOTATION_OF: Final = {
    names.CAPACITY_TFLOPS: names.ANNOTATION_TFLOPS_REQUEST,
    names.CAPACITY_VRAM: names.ANNOTATION_VRAM_REQUEST,
}
_ANNOTATION_OF_ATTRIBUTE: Final = {
    names.ATTR_MODEL: names.ANNOTATION_GPU_MODEL,
    names.ATTR_POOL_NAME: names.ANNOTATION_GPUPOOL,
    names.ATTR_QOS: names.ANNOTATION_QOS,
}
_PHYSICAL_OF: Final = {virtual: physical for physical, virtual in VIRTUAL_OF.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A card that only its tenants keep from a request.

    Attributes:
        taken: Sum of the tenants' shares, by capacity.
        share: Free part of what is requested, of the scarcest capacity; 0 to 1.
    """

    node: Document
    card: Card
    wanted: Wanted
    taken: Mapping[str, Quantity]
    share: float


def of(
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
        for candidate in _candidates(outcome, trial, by_name[outcome.name])
    ]
    candidates = sorted(found, key=lambda each: -each.share)[:_TRIED_CARDS]
    yield from _smaller(trial, clusters, candidates)
    yield from _in_the_way(trial, clusters, candidates)
    yield from _other_values(trial, outcomes)


def amounts(holder: Holder) -> str:
    """Return what a holder has of its device."""
    if holder.amounts is None:
        return "the whole card"
    return ", ".join(
        f"{name} {shown(amount)}" for name, amount in holder.amounts.items() if amount.nano
    )


def _candidates(outcome: NodeOutcome, trial: Trial, node: Document) -> Iterator[_Candidate]:
    asked = dict(placement.wanted_devices(trial.waiting))
    for card in outcome.cards:
        used = usage.Usage()
        for holder in card.holders:
            used.add(card.device.id, holder)
        taken = used.taken(card.device.id)
        for request, rejection in card.rejections.items():
            if rejection is None or rejection.cause not in (Cause.CAPACITY, Cause.EXCLUSIVE):
                continue
            consumed = usage.consumed(asked[request].amounts, card.device.capacity)
            shares = [
                (card.device.capacity[name].value - taken.get(name, Quantity(0))).nano / amount.nano
                for name, amount in consumed.items()
                if amount.nano
            ]
            yield _Candidate(
                node=node,
                card=card,
                wanted=asked[request],
                taken=taken,
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
            annotation = _ANNOTATION_OF.get(_PHYSICAL_OF.get(name, name), "")
            given_as = f"{annotation}:" if is_annotated and annotation else name
            texts.append(f"{given_as} {shown(amount)}")
        is_only = len(list(placement.wanted_devices(trial.waiting))) == 1
        of_request = "" if is_only else f" in request {wanted.name}"
        is_whole = is_annotated and pod_request.parse(annotated, []).whole
        instead = " instead of whole cards" if is_whole else ""
        node = candidate.node["metadata"]["name"]
        yield f"Request less{of_request}: {', '.join(texts)}{instead} fits now on {node}."
        return


def _reduced(candidate: _Candidate) -> dict[str, Quantity]:
    """Return what is free of each capacity of which the request takes more."""
    wanted, capacity = candidate.wanted, candidate.card.device.capacity
    reduced = {}
    for name, amount in usage.consumed(wanted.amounts, capacity).items():
        free = capacity[name].value - candidate.taken.get(name, Quantity(0))
        if amount > free:
            nano = free.nano
            if free.family == "binary":
                nano -= nano % _ROUNDED_DOWN_TO
            reduced[name] = Quantity(nano, free.family)
    return reduced


def _with_amounts(claim: Document, wanted: Wanted, amounts: Mapping[str, Quantity]) -> Document:
    """Return the claim with these amounts in every request that asks for what this one does."""
    if (claim.get("status") or {}).get("allocation"):
        return claim
    result = copy.deepcopy(dict(claim))
    for request in result["spec"]["devices"]["requests"]:
        for exact in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if exact is None or exact["deviceClassName"] != wanted.device_class:
                continue
            named = (exact.get("capacity") or {}).get("requests") or {}
            if {name: quantity.parse(text) for name, text in named.items()} == wanted.amounts:
                texts = {name: str(amount) for name, amount in amounts.items()}
                exact["capacity"] = {"requests": texts}
    return result


def _in_the_way(
    trial: Trial, clusters: NodeClusters, candidates: Sequence[_Candidate]
) -> Iterator[str]:
    """Yield the fewest holders of one card without which the pod fits, if there are any.

    Of the same number, those of the card with the most free.
    """
    best: tuple[Holder, ...] = ()
    text = ""
    for candidate in candidates:
        held = sorted((each for each in candidate.card.holders if not each.is_admin), key=_size)
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


def _size(holder: Holder) -> int:
    """Return a number by which a small share sorts before a large one; exclusive ones are last."""
    if holder.amounts is None:
        return 2**200
    return max((amount.nano for amount in holder.amounts.values()), default=0)


def _other_values(trial: Trial, outcomes: Sequence[NodeOutcome]) -> Iterator[str]:
    """Yield the values that cards have, where no card has what a selector demands."""
    for request, _ in placement.wanted_devices(trial.waiting):
        cards = [card for each in outcomes for card in each.cards if request in card.rejections]
        rejected = [card.rejections[request] for card in cards]
        if not cards or any(each is None or each.cause is not Cause.SELECTOR for each in rejected):
            continue
        subjects = Counter(each.subject for each in rejected if each is not None)
        for subject, _ in subjects.most_common(_SHOWN):
            yield from _values(subject, cards, trial)


def _values(subject: str, cards: Sequence[Card], trial: Trial) -> Iterator[str]:
    try:
        term = terms.terms(subject)
    except CelError:
        return
    devices = [card.device for card in cards]
    annotated = review.annotations_of(trial.pod)
    for lookup in term.lookups:
        name, found = lookup.name, rejections.values(lookup, devices)
        values = ", ".join(f"{value} ({count})" for value, count in found.most_common(_SHOWN + 1))
        annotation = _ANNOTATION_OF_ATTRIBUTE.get(name, "")
        wanted = annotated.get(annotation)
        if name == names.ATTR_PHASE and list(found) == [names.PHASE_UNKNOWN]:
            yield "Repair the cards: the driver publishes them as unhealthy (phase Unknown)."
        elif wanted and names.ANNOTATION_CEL_EXPRESSION not in annotated:
            yield f"Correct {annotation}: found {wanted}, but the cards have: {values}."
        else:
            yield (
                f"Correct the selector {answers.short(subject)}: the cards have {name}: {values}."
            )
