"""What would let a pod fit that no node has room for, as sentences."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.shared.tables import shown
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.cel import terms
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.scheduling import node_clusters, placement
from tensorfusion_dra.scheduling import trial as selector_trial
from tensorfusion_dra.scheduling.devices import DeviceId
from tensorfusion_dra.scheduling.holders import Holder
from tensorfusion_dra.scheduling.node_clusters import NodeClusters
from tensorfusion_dra.scheduling.placement import Card, NodeOutcome, Trial
from tensorfusion_dra.scheduling.rejections import Cause
from tensorfusion_dra.scheduling.relief import InTheWay, Relief, Smaller

Document = Mapping[str, Any]

_SHOWN: Final = 3
_TRIED_NODES: Final = 50
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


def of(
    trial: Trial,
    clusters: NodeClusters,
    nodes: Sequence[Document],
    outcomes: Sequence[NodeOutcome],
) -> Iterator[str]:
    """Yield what would help, the quickest first. Every proposal was tried on the cluster."""
    errors = [each for each in outcomes if each.error]
    if errors:
        expression = names.ANNOTATION_CEL_EXPRESSION
        if errors[0].is_selector_error and expression in review.annotations_of(trial.pod):
            yield f"Correct {expression}: tensorfusion-dra cel explain tries it on the cards."
        return
    relief = Relief(trial, clusters, nodes, outcomes)
    smaller = relief.smaller()
    if smaller is not None:
        yield _smaller(trial, smaller)
    fewer = relief.fewer()
    if fewer is not None:
        yield (
            f"Request fewer: {fewer.count} of the {fewer.asked} devices fit now on {fewer.node}."
        )
    in_the_way = relief.in_the_way()
    if in_the_way is not None:
        yield _in_the_way(in_the_way)
    yield from _too_large(outcomes, trial)
    yield from _other_values(trial, outcomes)
    yield from _tainted(trial, clusters, nodes, outcomes)
    yield from _refused(trial, clusters, nodes, outcomes)


def amounts(holder: Holder) -> str:
    """Return what a holder has of its device."""
    if holder.amounts is None:
        return "the whole card"
    return ", ".join(
        f"{name} {shown(amount)}" for name, amount in holder.amounts.items() if amount.nano
    )


def _smaller(trial: Trial, found: Smaller) -> str:
    annotated = review.annotations_of(trial.pod)
    is_annotated = pod_request.requests_gpu(annotated)
    texts = []
    for name, amount in found.amounts.items():
        if name not in found.changed:
            continue
        annotation = _ANNOTATION_OF.get(_PHYSICAL_OF.get(name, name), "")
        texts.append(
            f"{annotation}: {shown(amount)}"
            if is_annotated and annotation
            else f"{name} {shown(amount)}"
        )
    of_request = f" in request {found.request}" if found.request else ""
    is_whole = is_annotated and pod_request.parse(annotated, []).whole
    instead = " instead of whole cards" if is_whole else ""
    return f"Request less{of_request}: {', '.join(texts)}{instead} fits now on {found.node}."


def _in_the_way(found: InTheWay) -> str:
    them = " and ".join(f"{each.text} ({amounts(each)})" for each in found.holders)
    without = "it" if len(found.holders) == 1 else "them"
    return f"Wait for {them} on {found.card} of {found.node}: without {without} the pod fits there."


def _too_large(outcomes: Sequence[NodeOutcome], trial: Trial) -> Iterator[str]:
    """Yield what the cards have, if a request is larger than each, or no card has the capacity."""
    for request, wanted in placement.wanted_devices(trial.waiting):
        cards = [card for card in _cards(outcomes) if _is_selected(card, request)]
        for name, amount in wanted.amounts.items():
            sizes = [
                card.device.capacity[name].value for card in cards if name in card.device.capacity
            ]
            if sizes and max(sizes) < amount:
                largest = shown(max(sizes))
                yield f"No card has {name} {shown(amount)}: the largest has {largest}."
            elif cards and not sizes:
                known = ", ".join(sorted({each for card in cards for each in card.device.capacity}))
                yield f"Correct the capacity {name}: the cards have {known or 'none'}."


def _other_values(trial: Trial, outcomes: Sequence[NodeOutcome]) -> Iterator[str]:
    """Yield the values that cards have, where no card has what a selector demands."""
    for request, _ in placement.wanted_devices(trial.waiting):
        cards = [card for card in _cards(outcomes) if request in card.rejections]
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
    for name, found in selector_trial.tried_term(term, devices).values.items():
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


def _tainted(
    trial: Trial,
    clusters: NodeClusters,
    nodes: Sequence[Document],
    outcomes: Sequence[NodeOutcome],
) -> Iterator[str]:
    """Yield the tainted cards of the nodes where the pod fits without the taints."""
    by_name = {str(node["metadata"]["name"]): node for node in nodes}
    tainted = {each.name: dict(_taints(each)) for each in outcomes}
    found: dict[str, list[str]] = {}
    for name in [name for name, of_node in tainted.items() if of_node][:_TRIED_NODES]:
        near = node_clusters.repaired(clusters.at(name), tainted[name].keys())
        if placement.outcome(trial, near, by_name[name]).fits:
            for device, taint in tainted[name].items():
                found.setdefault(taint, []).append(f"{device.device} of {name}")
    for taint, cards in found.items():
        more = f" and {len(cards) - _SHOWN} more" if len(cards) > _SHOWN else ""
        is_health = taint.startswith(names.TAINT_UNHEALTHY)
        cure = "Repair" if is_health else "Remove the taint from"
        yield f"{cure} {', '.join(cards[:_SHOWN])}{more}: would fit but for the taint {taint}."


def _taints(outcome: NodeOutcome) -> Iterator[tuple[DeviceId, str]]:
    for card in outcome.cards:
        nearest = answers.nearest(card)
        if nearest is not None and nearest.cause is Cause.TAINT:
            yield card.device.id, nearest.subject


def _refused(
    trial: Trial,
    clusters: NodeClusters,
    nodes: Sequence[Document],
    outcomes: Sequence[NodeOutcome],
) -> Iterator[str]:
    """Yield the nodes that have free devices, but are unfit for another reason."""
    anywhere = copy.deepcopy(dict(trial.pod))
    anywhere["spec"] = {"tolerations": [{"operator": "Exists"}]}
    freed = Trial(pod=anywhere, claims=trial.claims)
    by_name = {str(node["metadata"]["name"]): node for node in nodes}
    refused = [each for each in outcomes if each.refusal][:_TRIED_NODES]
    count = 0
    for each in refused:
        node = by_name[each.name]
        if placement.outcome(freed, clusters.at(each.name), node).fits:
            yield f"{each.name} has room, but: {each.refusal}."
            count += 1
            if count == _SHOWN:
                return


def _cards(outcomes: Sequence[NodeOutcome]) -> list[Card]:
    return [card for outcome in outcomes for card in outcome.cards]


def _is_selected(card: Card, request: str) -> bool:
    found = card.rejections.get(request)
    return request in card.rejections and (
        found is None or found.cause not in (Cause.SELECTOR, Cause.UNSUPPORTED)
    )
