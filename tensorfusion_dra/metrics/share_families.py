"""Metric families of the shares: who has which part of which card.

They are the only ones whose number grows with the pods of the node, so they are bounded. What is
left out is counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from prometheus_client.metrics_core import Metric

from tensorfusion_dra.core.claims.enforcement.verdict import State
from tensorfusion_dra.core.observed.node_view import ShareView
from tensorfusion_dra.metrics import families
from tensorfusion_dra.metrics.counts import LabelValues
from tensorfusion_dra.metrics.families import label

_SHARE: Final = ("namespace", "pod", "claim", "request", "uuid", "share_id")
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class _Labelled:
    labels: LabelValues
    share: ShareView


def of_shares(shares: Sequence[ShareView], *, most: int) -> Iterator[Metric]:
    """Yield the families of all shares.

    Args:
        shares: Of all prepared claims.
        most: Number of shares that get series of their own.
    """
    shown = list(_distinct(islice(shares, most)))
    states = [_state(share) for share in shares]
    yield families.single("shares", "Shares of prepared claims.", len(shares))
    yield families.gauge(
        "shares_by_enforcement",
        "Shares by whether their limits are enforced.",
        ("state",),
        (((state.value,), states.count(state)) for state in State),
    )
    yield families.single(
        "shares_left_out", "Shares without series of their own.", len(shares) - len(shown)
    )
    yield families.info(
        "share",
        "A share of a prepared claim.",
        (*_SHARE, "isolation", "enforcement"),
        ((*each.labels, each.share.isolation.value, _state(each.share).value) for each in shown),
    )
    yield from _amounts(shown)


def _amounts(shown: Sequence[_Labelled]) -> Iterator[Metric]:
    yield families.gauge(
        "share_requested_tflops",
        "Compute that the share counts against its card's capacity, in TFLOPS.",
        _SHARE,
        ((each.labels, each.share.requested.tflops) for each in shown),
    )
    yield families.gauge(
        "share_requested_vram_bytes",
        "Memory that the share counts against its card's capacity.",
        _SHARE,
        ((each.labels, each.share.requested.vram_bytes) for each in shown),
    )
    limits = [(each.labels, each.share.limit) for each in shown if each.share.limit]
    yield families.gauge(
        "share_limit_compute_ratio",
        "Part of the card's compute that the container may use; absent without a limit.",
        _SHARE,
        ((labels, limit.sm_percent / _PERCENT) for labels, limit in limits),
    )
    yield families.gauge(
        "share_limit_vram_bytes",
        "Memory that the container may use; absent without a limit.",
        _SHARE,
        ((labels, limit.vram_bytes) for labels, limit in limits),
    )


def _distinct(shares: Iterator[ShareView]) -> Iterator[_Labelled]:
    """Yield shares whose labels differ from those of all before: the format allows no others.

    Two with the same labels are the same claim before and after it was created anew, or shares
    for admin access, which have no ID.
    """
    seen: set[LabelValues] = set()
    for share in shares:
        labels = _labels(share)
        if labels not in seen:
            seen.add(labels)
            yield _Labelled(labels, share)


def _labels(share: ShareView) -> LabelValues:
    return (
        label(share.claim.namespace),
        label(",".join(share.pods)),
        label(share.claim.name),
        label(share.request),
        label(share.gpu_uuid),
        label(share.share_id or ""),
    )


def _state(share: ShareView) -> State:
    return share.enforcement.verdict.state if share.enforcement else State.UNKNOWN
