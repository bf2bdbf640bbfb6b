"""A diagnosis as text: the answer, what helps, and the nodes, alike ones in one line."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.app.shared.streams import table
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.app.why.diagnosis import Diagnosis
from tensorfusion_dra.core import printable
from tensorfusion_dra.scheduling.placement import Cause, NodeOutcome, Rejection, TriedCard

_MAX_NODES: Final = 8
"""Of more nodes, only groups are shown."""
_SHOWN_NAMES: Final = 2
_SHOWN_HOLDERS: Final = 4
_SHOWN_HELPS: Final = 6


def lines(found: Diagnosis) -> Iterator[str]:
    """Return the lines of a diagnosis, with short names of cards.

    Characters that a terminal would execute are escaped.
    """
    short = streams.short_names(
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
    rows = _grouped(tried) if len(tried) > _MAX_NODES else _each(tried, short)
    nodes = table([("NODE", "CARD", "WHY NOT", "HELD BY"), *rows], indent="")
    release = (
        f"This is how Kubernetes {found.release} allocates devices; CPU, memory, ports, volumes "
        "and affinity between pods are not checked here."
    )
    text = streams.sections(
        [_cut(found.answer, short)],
        ["What helps", *(f"  - {_cut(text, short)}" for text in helps)] if helps else (),
        ["Also found", *others] if others else (),
        nodes if any(not outcome.fits for outcome in tried) else (),
        [f"Not checked: {', '.join(found.unchecked)}."] if found.unchecked else (),
        [release] if found.outcomes else (),
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
                "pools": list(outcome.troubles),
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
        "release": found.release,
    }


def _cut(text: str, short: Mapping[str, str]) -> str:
    for name, cut in short.items():
        text = text.replace(name, cut)
    return text


def _each(outcomes: Sequence[NodeOutcome], short: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """Yield a row for each card; cards of a node that are alike share one."""
    for outcome in outcomes:
        if not outcome.cards:
            yield outcome.name, "", _cut(_node_text(outcome), short), ""
            continue
        rows: dict[tuple[str, str], list[str]] = {}
        for card in outcome.cards:
            key = (answers.short(_card_text(card)), _holders_text(card))
            rows.setdefault(key, []).append(short[card.device.id.device])
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
            why = ", ".join(
                answers.numbered(count, reason) for reason, count in counts.most_common()
            )
        else:
            why = ", ".join(reasons)
        yield name, str(cards or ""), why, ""


def _kind(card: TriedCard) -> str:
    rejection = answers.nearest(card)
    return "fit alone" if rejection is None else answers.cause_text(rejection)


def _node_text(outcome: NodeOutcome) -> str:
    if outcome.fits:
        cards = ", ".join(dict.fromkeys(device.device for device in outcome.picked or ()))
        return f"fits: {cards}" if cards else "fits"
    reason = outcome.refusal or "; ".join(outcome.troubles)
    return reason or "has no device of the requested class"


def _card_text(card: TriedCard) -> str:
    """Return why a card is rejected, for each request if they differ."""
    texts = {
        request: _rejection_text(rejection) if rejection else "fits alone"
        for request, rejection in card.rejections.items()
    }
    if card.note and not any(card.rejections.values()):
        return f"fits alone, but with the pod's other cards: {streams.with_points(card.note)}"
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{request}: {text}" for request, text in texts.items())


def _rejection_text(rejection: Rejection) -> str:
    if rejection.cause not in (Cause.CAPACITY, Cause.AMOUNT):
        return rejection.text
    return streams.with_points(rejection.text)


def _holders_text(card: TriedCard) -> str:
    """Return the tenants of a card, if they are why it is rejected, with what they have of it."""
    rejection = answers.nearest(card)
    if rejection is None or rejection.cause not in (Cause.CAPACITY, Cause.EXCLUSIVE):
        return ""
    shares = []
    for holder in (each for each in card.holders if not each.is_admin):
        amount = (holder.amounts or {}).get(rejection.subject)
        text = answers.amounts(holder) if amount is None else streams.shown(amount)
        shares.append(f"{holder.text} ({text})")
    return printable.first(shares, _SHOWN_HOLDERS)
