"""Metric families of the cards: amounts, health and XIDs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.health import Kind
from tensorfusion_dra.core.observed.node_view import Amounts, CardView
from tensorfusion_dra.metrics import families
from tensorfusion_dra.metrics.counts import LabelValues
from tensorfusion_dra.metrics.families import label

HEALTHY: Final = "healthy"
_HEALTH: Final = (HEALTHY, *(kind.name.lower() for kind in Kind))
_INFO: Final = ("uuid", "device", "model", "product_name", "driver_version", "pci_bus_id")

_AMOUNTS: Final[Sequence[tuple[str, str, Callable[[CardView], Amounts]]]] = (
    ("physical", "that the card itself has for containers", lambda card: card.physical),
    ("capacity", "that the card's shares divide, as published", lambda card: card.capacity),
    ("consumed", "that prepared shares count against the capacity", lambda card: card.consumed),
    ("free", "that is left of the capacity", lambda card: card.free),
)


def of_cards(cards: Sequence[CardView]) -> Iterator[Metric]:
    """Yield the families of all cards."""
    yield families.info(
        "card",
        "A published card.",
        _INFO,
        (tuple(label(getattr(card, name)) for name in _INFO) for card in cards),
    )
    for name, about, amounts in _AMOUNTS:
        yield families.gauge(
            f"card_{name}_tflops",
            f"Compute {about}, in TFLOPS.",
            ("uuid",),
            ((_uuid(card), amounts(card).tflops) for card in cards),
        )
        yield families.gauge(
            f"card_{name}_vram_bytes",
            f"Memory {about}.",
            ("uuid",),
            ((_uuid(card), amounts(card).vram_bytes) for card in cards),
        )
    yield families.gauge(
        "card_oversubscription_ratio",
        "Capacity divided by what the card itself has.",
        ("uuid", "resource"),
        (ratio for card in cards for ratio in _ratios(card)),
    )
    yield from _health(cards)


def _health(cards: Sequence[CardView]) -> Iterator[Metric]:
    yield families.states(
        "card_health",
        "1 for the card's state of health.",
        ("uuid",),
        ((_uuid(card), _state(card)) for card in cards),
        known=_HEALTH,
    )
    yield families.gauge(
        "card_unhealthy_since_timestamp_seconds",
        "When the card became unhealthy; absent while it is healthy.",
        ("uuid", "reason"),
        (
            ((*_uuid(card), label(card.sickness.worst.reason)), card.sickness.since.timestamp())
            for card in cards
            if card.sickness
        ),
    )
    yield families.counter(
        "card_xids",
        "XIDs that the NVIDIA driver reported about the card.",
        ("uuid", "xid"),
        {key: number for card in cards for key, number in _xids(card)},
    )


def _uuid(card: CardView) -> LabelValues:
    return (label(card.uuid),)


def _state(card: CardView) -> str:
    return card.sickness.worst.kind.name.lower() if card.sickness else HEALTHY


def _ratios(card: CardView) -> Iterable[tuple[LabelValues, float]]:
    pairs = {
        "tflops": (card.capacity.nano_tflops, card.physical.nano_tflops),
        "vram": (card.capacity.vram_bytes, card.physical.vram_bytes),
    }
    for resource, (capacity, physical) in pairs.items():
        if physical:
            yield (*_uuid(card), resource), capacity / physical


def _xids(card: CardView) -> Iterable[tuple[LabelValues, int]]:
    """Yield the number of each XID; those that NVIDIA describes as marking a card exist at 0."""
    numbers = dict.fromkeys(xids.DESCRIPTIONS, 0)
    numbers.update((each.code, each.count) for each in card.xids)
    for code, number in numbers.items():
        yield (*_uuid(card), str(code)), number
