"""The cards of a cluster and their shares, as tables and for programs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from tensorfusion_dra.app.shared import short_names
from tensorfusion_dra.app.shared.amounts import shown
from tensorfusion_dra.app.shared.tables import table
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import inventory
from tensorfusion_dra.scheduling.inventory import Amount, StockedCard
from tensorfusion_dra.scheduling.usage import Holder

FORMS: Final = ("table", "wide", "json", "yaml")
_COLUMNS: Final = (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)


def text(found: Sequence[StockedCard], *, form: str, namespace: str) -> str:
    """Return the cards in one of FORMS, ended by a line break.

    Args:
        namespace: Only shares of this namespace and cards with one; "" for all.
    """
    cards = [card for card in found if not namespace or _held_by(card, namespace)]
    if form == "json":
        return json.dumps(_document(cards, found, namespace), indent=2) + "\n"
    if form == "yaml":
        return str(yaml.safe_dump(_document(cards, found, namespace), sort_keys=False))
    lines = _lines(cards, found, namespace, is_wide=form == "wide")
    return "".join(f"{printable.one_line(line)}\n" for line in lines)


def _lines(
    cards: Sequence[StockedCard], all_cards: Sequence[StockedCard], namespace: str, *, is_wide: bool
) -> Iterator[str]:
    yield _summary(all_cards)
    if not cards:
        if not all_cards:
            yield "no node publishes GPUs: tensorfusion-dra doctor says what is missing"
        else:
            yield f"no shares in namespace {namespace}"
        return
    yield ""
    short = short_names.of(card.device.id.device for card in all_cards)
    heads = ["NODE", "GPU", "MODEL", "TFLOPS FREE", "VRAM FREE", "SHARES", "HEALTH"]
    rows = [[*_card_row(card, short), *(_wide_card(card) if is_wide else ())] for card in cards]
    yield from table([[*heads, *(("POOL", "UUID") if is_wide else ())], *rows], indent="")
    shares = [
        (card, holder)
        for card in cards
        for holder in card.holders
        if not namespace or holder.namespace == namespace
    ]
    if not shares:
        return
    yield ""
    heads = ["POD", "NODE", "GPU", "TFLOPS", "VRAM"]
    rows = [
        [
            *_share_row(card, holder, short),
            *((holder.claim, holder.request) if is_wide else ()),
        ]
        for card, holder in shares
    ]
    yield from table([[*heads, *(("CLAIM", "REQUEST") if is_wide else ())], *rows], indent="")


def _summary(cards: Sequence[StockedCard]) -> str:
    published = [card for card in cards if card.is_published]
    nodes = len({card.node for card in published if card.node})
    shares = sum(len(card.holders) for card in cards)
    sums = inventory.totals(published)
    free = [
        f"{name} {shown(amount.free)} of {shown(amount.total)} free"
        for name, amount in sums.items()
        if VIRTUAL_OF.get(name) not in sums
    ]
    tainted = sum(card.is_tainted for card in published)
    gone = len(cards) - len(published)
    counted = (_plural(nodes, "node"), _plural(len(published), "GPU"), _plural(shares, "share"))
    parts = [", ".join(counted), *free]
    parts += [f"{_plural(tainted, 'GPU')} tainted, not counted as free"] if tainted else []
    parts += [f"{_plural(gone, 'GPU')} gone, but held by claims"] if gone else []
    return "; ".join(parts)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _card_row(card: StockedCard, short: Mapping[str, str]) -> list[object]:
    return [
        card.node or "-",
        short[card.device.id.device],
        _attribute(card, names.ATTR_MODEL) or "-",
        *(_divided(card, name) for name in _COLUMNS),
        len(card.holders),
        _health(card),
    ]


def _wide_card(card: StockedCard) -> tuple[str, str]:
    return card.device.id.pool, _attribute(card, names.ATTR_UUID) or "-"


def _share_row(card: StockedCard, holder: Holder, short: Mapping[str, str]) -> list[str]:
    return [
        holder.text + (" (observes)" if holder.is_admin else ""),
        card.node or "-",
        short[card.device.id.device],
        *(_consumed(card, holder, name) for name in _COLUMNS),
    ]


def _divided(card: StockedCard, name: str) -> str:
    """Return what is free of the capacity that tenants divide: the virtual one if there is one."""
    virtual = card.amounts.get(VIRTUAL_OF[name])
    amount = virtual or card.amounts.get(name)
    if amount is None:
        return "-"
    return f"{shown(amount.free)} of {shown(amount.total)}" + (" virtual" if virtual else "")


def _consumed(card: StockedCard, holder: Holder, name: str) -> str:
    if holder.amounts is None:
        return "all" if not holder.is_admin else "-"
    virtual = holder.amounts.get(VIRTUAL_OF[name])
    physical = holder.amounts.get(name)
    if VIRTUAL_OF[name] in card.amounts and virtual is not None:
        return shown(virtual)
    return shown(physical) if physical is not None else "-"


def _health(card: StockedCard) -> str:
    if not card.is_published:
        return "gone"
    taints = [
        f"{taint.key}={taint.value}" if taint.value else taint.key for taint in card.device.taints
    ]
    phase = _attribute(card, names.ATTR_PHASE)
    return ", ".join(taints) or ("ok" if phase in ("", names.PHASE_RUNNING) else phase)


def _attribute(card: StockedCard, name: str) -> str:
    found = card.device.attribute(f"{names.DRIVER}/{name}")
    return "" if found is None else str(found.value)


def _held_by(card: StockedCard, namespace: str) -> bool:
    return any(holder.namespace == namespace for holder in card.holders)


def _document(
    cards: Sequence[StockedCard], all_cards: Sequence[StockedCard], namespace: str
) -> Mapping[str, Any]:
    published = [card for card in all_cards if card.is_published]
    return {
        "free": {name: _amount(each) for name, each in inventory.totals(published).items()},
        "cards": [_card_document(card, namespace) for card in cards],
    }


def _card_document(card: StockedCard, namespace: str) -> Mapping[str, Any]:
    return {
        "node": card.node,
        "pool": card.device.id.pool,
        "device": card.device.id.device,
        "uuid": _attribute(card, names.ATTR_UUID),
        "model": _attribute(card, names.ATTR_MODEL),
        "published": card.is_published,
        "health": _health(card),
        "taints": [
            {"key": taint.key, "value": taint.value, "effect": taint.effect}
            for taint in card.device.taints
        ],
        "capacity": {name: _amount(each) for name, each in card.amounts.items()},
        "shares": [
            {
                "namespace": holder.namespace,
                "pods": list(holder.consumers),
                "claim": holder.claim,
                "request": holder.request,
                "exclusive": holder.amounts is None and not holder.is_admin,
                "adminAccess": holder.is_admin,
                "amounts": _texts(holder.amounts or {}),
            }
            for holder in card.holders
            if not namespace or holder.namespace == namespace
        ],
    }


def _amount(amount: Amount) -> Mapping[str, str]:
    return {"total": str(amount.total), "taken": str(amount.taken), "free": str(amount.free)}


def _texts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}
