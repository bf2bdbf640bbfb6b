"""What would let a pod fit that no node has room for, as sentences."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.shared.tables import shown
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.cel import terms
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.scheduling import placement, selector_trace
from tensorfusion_dra.scheduling.node_clusters import NodeClusters
from tensorfusion_dra.scheduling.placement import Card, NodeOutcome, Trial
from tensorfusion_dra.scheduling.rejections import Cause
from tensorfusion_dra.scheduling.relief import InTheWay, Relief, Smaller
from tensorfusion_dra.scheduling.usage import Holder

Document = Mapping[str, Any]

_SHOWN: Final = 3
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
    """Yield what would help, the quickest first: less, pods that are in the way, other values."""
    if any(each.error for each in outcomes):
        return
    relief = Relief(trial, clusters, nodes, outcomes)
    smaller = relief.smaller()
    if smaller is not None:
        yield _smaller(trial, smaller)
    in_the_way = relief.in_the_way()
    if in_the_way is not None:
        yield _in_the_way(in_the_way)
    yield from _other_values(trial, outcomes)


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
    for name, found in selector_trace.traced_term(term, devices).values.items():
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
