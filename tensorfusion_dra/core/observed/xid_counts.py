"""Counts of the XIDs that the NVIDIA driver reported, by card."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.health import CardEvent, EventKind, HealthRules
from tensorfusion_dra.core.observed.node_view import XidCount

XidCounts = Mapping[str, tuple[XidCount, ...]]
"""By GPU UUID; the counts of a card are sorted by XID."""


def counted(known: XidCounts, event: CardEvent, rules: HealthRules, at: datetime) -> XidCounts:
    """Return the counts after one more event; other events than XIDs of a card do not count."""
    if event.kind is not EventKind.XID or event.gpu_uuid is None:
        return known
    of_card = {each.code: each for each in known.get(event.gpu_uuid, ())}
    new = XidCount(
        code=event.code,
        text=xids.description(event.code),
        marks_card=rules.xids.marks_card(event.code),
        count=0,
        last_at=at,
    )
    before = of_card.get(event.code, new)
    of_card[event.code] = replace(before, count=before.count + 1, last_at=at)
    return {**known, event.gpu_uuid: tuple(of_card[code] for code in sorted(of_card))}
