"""The answer of `why` in one sentence."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tensorfusion_dra.app.why.claims import WEBHOOK
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.cel import terms
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.scheduling import placement, search
from tensorfusion_dra.scheduling.placement import Card, NodeOutcome, Trial
from tensorfusion_dra.scheduling.rejections import Cause, Rejection
from tensorfusion_dra.scheduling.requests import Wanted

ELSEWHERE: Final = (
    "Ask with an account that has the right: kubectl tensorfusion why, with your own kubeconfig."
)
_SHOWN_NODES: Final = 3
_BEGINNINGS: Final = tuple(
    f'device.{kind}["{names.DRIVER}"].{optional}'
    for kind in (terms.ATTRIBUTES, terms.CAPACITY)
    for optional in ("?", "")
)
_DEFAULT: Final = '.orValue("")'
"""What the webhook's selectors compare if a device lacks the attribute."""
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
"""Causes by what is missing to a fit, the least first: a tainted card passed all other checks. One
that is in use exclusively comes before one that does not match, because it may become free."""


def bound(pod: str, node: str, phase: str, trouble: str, findings: Sequence[Finding]) -> str:
    """Return the answer for a pod that has a node, or is done.

    Args:
        trouble: What an Event says of the pod's start; "" if none says anything.
        findings: Faults of the pod and its claims.
    """
    answer = _bound(pod, node, phase, trouble)
    if not findings:
        return answer
    first = f"{findings[0].subject}: {findings[0].found}".removesuffix(".")
    what = "It got no GPU: " if findings[0].subject == WEBHOOK else "But "
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return f"{answer.removesuffix('.')}. {what}{first}{more}."


def _bound(pod: str, node: str, phase: str, trouble: str) -> str:
    if phase in ("Succeeded", "Failed"):
        return f"{pod} is done: {phase}."
    if phase == "Running":
        return f"{pod} runs on {node}."
    if trouble:
        return f"{pod} is scheduled on {node} already; it waits there: {trouble}"
    return (
        f"{pod} is scheduled on {node} already; it waits there for something else: "
        f"kubectl describe pod shows its Events, tensorfusion-dra doctor checks the node."
    )


def blocked(
    pod: str, problems: Sequence[Finding], trial: Trial, outcomes: Sequence[NodeOutcome]
) -> str:
    """Return the answer for a pod that cannot be scheduled, whatever is free.

    Args:
        outcomes: What would be without the problems; empty if that is not known.
    """
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    cannot = "gets no GPU" if first.subject == WEBHOOK else "cannot be scheduled"
    answer = f"{pod} {cannot}: {first.subject}: {first.found}{more}."
    if not outcomes or any(each.error for each in outcomes):
        return answer
    if any(each.fits for each in outcomes):
        return f"{answer} Otherwise it fits now on {node_names(outcomes)}."
    return f"{answer} Nor is there room: {_shortage(trial, outcomes)}."


def untried(pod: str, missing: Sequence[str]) -> str:
    """Return the answer for a pod that was not tried on the nodes, for want of rights."""
    return (
        f"{pod} waits; whether a card is free for it was not tried: no right to list "
        f"{' and '.join(missing)}. {ELSEWHERE}"
    )


def fits(pod: str, outcomes: Sequence[NodeOutcome], *, has_claims: bool) -> str:
    """Return the answer for a pod that fits."""
    where = node_names(outcomes)
    if not has_claims:
        return f"{pod} requests no GPU by a claim; nothing that was checked keeps it from {where}."
    first = next(each for each in outcomes if each.fits)
    cards = ", ".join(dict.fromkeys(device.device for device in first.picked or ()))
    on_cards = f" ({cards})" if cards else ""
    return f"{pod} fits now on {where}{on_cards}."


def unfit(pod: str, trial: Trial, outcomes: Sequence[NodeOutcome]) -> str:
    """Return the answer for a pod that no node has room for."""
    errors = [each.error for each in outcomes if each.error]
    if errors:
        return f"{pod} cannot be scheduled on any node: {errors[0]}."
    if not outcomes:
        return f"{pod} cannot be scheduled: the cluster has no nodes."
    return f"{pod} waits: {_shortage(trial, outcomes)}."


def _shortage(trial: Trial, outcomes: Sequence[NodeOutcome]) -> str:
    """Return what no node has."""
    tried = [each for each in outcomes if not each.refusal]
    if not tried:
        return f"no node is fit for it: {_of_nodes(each.refusal for each in outcomes)}"
    wanted = dict(placement.wanted_devices(trial.waiting))
    cards = [card for each in tried for card in each.cards]
    refused = len(outcomes) - len(tried)
    verb = "is" if refused == 1 else "are"
    beside = f" ({refused} of {len(outcomes)} nodes {verb} unfit anyway)" if refused else ""
    if not cards:
        troubles = [trouble for each in tried for trouble in each.troubles]
        lacking = f"they have no device of DeviceClass {_classes(wanted, wanted)}"
        why = _of_nodes(troubles) if troubles else lacking
        return f"no node that it may use has a usable device: {why}{beside}"
    every = list(placement.alternatives(trial.waiting))
    hopeless = [each for each in every if not any(_passes(card, each) for card in cards)]
    if hopeless:
        claim, request, *_ = hopeless[0][0].split("/")
        which = f"for request {claim}/{request}, " if len(set(every)) > 1 else ""
        return f"{which}{_none_of(cards, hopeless[0], wanted)}{beside}"
    most = max(tried, key=lambda each: sum(card.passes for card in each.cards))
    number = sum(card.passes for card in most.cards)
    asked = placement.number_of_devices(trial.waiting)
    rest = _causes(map(nearest, most.cards))
    if not rest and number >= (asked or 1):
        notes = _counted(
            card.note for card in most.cards if card.note.startswith(search.UNSATISFIED)
        )
        rest = f"but {notes}" if notes else ""
    its_cards = (
        "its card" if asked == 1 else f"{f'its {asked}' if asked else 'all its'} cards at once"
    )
    fit = "fits" if number == 1 else "fit"
    return (
        f"no node has {its_cards}: most are on {most.name}, where {number} of {len(most.cards)} "
        f"{fit} alone{', ' + rest if rest else ''}{beside}"
    )


def _passes(card: Card, request: Sequence[str]) -> bool:
    """Return True if a card passes every check of one of a request's alternatives."""
    return any(name in card.rejections and card.rejections[name] is None for name in request)


def _none_of(cards: Sequence[Card], request: Sequence[str], wanted: Mapping[str, Wanted]) -> str:
    """Return why no card passes a request, which for a single card needs no number."""
    of_class = [
        [card.rejections[name] for name in request if name in card.rejections] for card in cards
    ]
    found = [_nearest(rejections) for rejections in of_class if rejections]
    if not found:
        return f"no node that it may use has a device of DeviceClass {_classes(wanted, request)}"
    if len(found) == 1 and found[0] is not None:
        _, _, cause = numbered(1, cause_text(found[0])).partition(" ")
        return f"the only card {cause}"
    return f"none of {len(found)} cards fits: {_causes(found)}"


def _classes(wanted: Mapping[str, Wanted], request: Iterable[str]) -> str:
    """Return the DeviceClasses of the alternatives of a request."""
    return " or ".join(dict.fromkeys(wanted[name].device_class for name in request))


def node_names(outcomes: Sequence[NodeOutcome]) -> str:
    """Return the names of the nodes that fit, the first ones and the number of the others."""
    return printable.first([each.name for each in outcomes if each.fits], _SHOWN_NODES)


def nearest(card: Card) -> Rejection | None:
    """Return the rejection of the request that a card is nearest to; None if it passes one."""
    return None if card.passes else _nearest(card.rejections.values())


def _nearest(rejections: Iterable[Rejection | None]) -> Rejection | None:
    found = [each for each in rejections if each is not None]
    return min(found, key=lambda each: _NEAREST.index(each.cause), default=None)


def cause_text(rejection: Rejection) -> str:
    """Return the cause of a rejection without the values of its device."""
    match rejection.cause:
        case Cause.SELECTOR:
            return f"do not match {short(rejection.subject)}"
        case Cause.CAPACITY:
            return f"have too little free {rejection.subject}"
        case Cause.AMOUNT:
            return f"do not offer the requested {rejection.subject}"
        case Cause.EXCLUSIVE:
            return "are in use exclusively"
        case Cause.TAINT:
            return f"are tainted {rejection.subject}"
    return f"use {rejection.subject}, which is not supported"


def short(expression: str) -> str:
    """Return an expression with this driver's attributes by name only: ``model == "A100"``."""
    for part in (*_BEGINNINGS, _DEFAULT):
        expression = expression.replace(part, "")
    return expression


def numbered(count: int, text: str) -> str:
    """Return a cause with the number of its devices: ``1 is tainted``, ``2 are tainted``."""
    verb, space, rest = text.partition(" ")
    return f"{count} {(_SINGULAR if count == 1 else _PLURAL).get(verb, verb)}{space}{rest}"


def _causes(rejections: Iterable[Rejection | None]) -> str:
    """Return the causes of one rejection each of some cards, the nearest to a fit first."""
    found = [each for each in rejections if each is not None]
    ordered = sorted(found, key=lambda each: _NEAREST.index(each.cause))
    return _counted(map(cause_text, ordered))


def _counted(texts: Iterable[str]) -> str:
    """Return the texts about one card each with their numbers; the rarest are left out."""
    return _joined(Counter(texts), lambda text, count: numbered(count, text), ", ")


def _of_nodes(texts: Iterable[str]) -> str:
    """Return the texts about one node each, with the numbers of nodes; the rarest are left out."""
    return _joined(
        Counter(texts), lambda text, count: text if count == 1 else f"{text} ({count} nodes)", "; "
    )


def _joined(counts: Counter[str], shown: Callable[[str, int], str], separator: str) -> str:
    kept = dict(counts.most_common(_SHOWN_REASONS))
    texts = [shown(text, count) for text, count in counts.items() if text in kept]
    more = len(counts) - len(kept)
    reasons = "reason" if more == 1 else "reasons"
    return separator.join([*texts, f"{more} other {reasons}"] if more > 0 else texts)
