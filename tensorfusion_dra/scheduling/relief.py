"""What would let a pod fit now: pods that are in its way, or a smaller request.

Every proposal is tried by the allocation itself before it is made.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity
from tensorfusion_dra.scheduling import consumable_capacity, node_clusters, placement, usage
from tensorfusion_dra.scheduling.node_clusters import NodeClusters
from tensorfusion_dra.scheduling.placement import Card, NodeOutcome, Trial
from tensorfusion_dra.scheduling.rejections import Cause
from tensorfusion_dra.scheduling.requests import Wanted
from tensorfusion_dra.scheduling.usage import Holder

Document = Mapping[str, Any]

_TRIED_CARDS: Final = 40
"""Cards on which proposals are tried, the most promising first."""
_ROUNDED_DOWN_TO: Final = MIB * NANO


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A smaller request that fits now.

    Attributes:
        request: Name of the request; "" if all requests of the pod ask for the same.
        amounts: All amounts that it would name, by capacity.
        changed: Names of the capacities whose amount is smaller than before.
    """

    node: str
    request: str
    amounts: Mapping[str, Quantity]
    changed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InTheWay:
    """Holders of one card without which the pod would fit."""

    node: str
    card: str
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A card that only its tenants keep from a request.

    Attributes:
        share: Free part of what is requested, of the scarcest capacity; 0 to 1.
    """

    node: Document
    card: Card
    wanted: Wanted
    share: float


class Relief:
    """Proposals for one pod that fits on no node."""

    def __init__(
        self,
        trial: Trial,
        clusters: NodeClusters,
        nodes: Sequence[Document],
        outcomes: Sequence[NodeOutcome],
    ) -> None:
        self._trial: Final = trial
        self._clusters: Final = clusters
        self._nodes: Final = {str(node["metadata"]["name"]): node for node in nodes}
        found = [
            candidate
            for outcome in outcomes
            for candidate in _candidates(outcome, trial, self._nodes)
        ]
        self._candidates: Final = sorted(found, key=lambda each: -each.share)[:_TRIED_CARDS]

    def smaller(self) -> Smaller | None:
        """Return the largest smaller request that fits somewhere now; None if there is none."""
        for candidate in self._candidates:
            amounts = _free_amounts(candidate)
            if amounts is None:
                continue
            wanted = candidate.wanted
            claims = [_with_amounts(claim, wanted, amounts) for claim in self._trial.claims]
            if self._fits(candidate.node, claims):
                changed = {name for name in amounts if amounts[name] != wanted.amounts.get(name)}
                alike = len(list(placement.wanted_devices(self._trial.waiting))) == 1
                return Smaller(
                    node=str(candidate.node["metadata"]["name"]),
                    request="" if alike else wanted.name,
                    amounts=amounts,
                    changed=frozenset(changed),
                )
        return None

    def in_the_way(self) -> InTheWay | None:
        """Return the fewest holders of one card without which the pod fits; None if none are.

        Of the same number, those of the card with the most free.
        """
        best: InTheWay | None = None
        for candidate in self._candidates:
            found = self._holders_in_the_way(candidate)
            if found and (best is None or len(found) < len(best.holders)):
                best = InTheWay(
                    node=str(candidate.node["metadata"]["name"]),
                    card=candidate.card.device.id.device,
                    holders=found,
                )
            if best is not None and len(best.holders) == 1:
                break
        return best

    def _holders_in_the_way(self, candidate: _Candidate) -> tuple[Holder, ...]:
        held = [holder for holder in candidate.card.holders if not holder.is_admin]
        ordered = sorted(held, key=_size)
        for holder in ordered:
            if self._fits(candidate.node, self._trial.claims, gone=(holder,)):
                return (holder,)
        gone: tuple[Holder, ...] = ()
        for holder in reversed(ordered):
            gone = (*gone, holder)
            if len(gone) > 1 and self._fits(candidate.node, self._trial.claims, gone=gone):
                return gone
        return ()

    def _fits(
        self, node: Document, claims: Sequence[Document], *, gone: Sequence[Holder] = ()
    ) -> bool:
        near = self._clusters.at(str(node["metadata"]["name"]))
        near = node_clusters.without(near, [holder.key for holder in gone])
        trial = Trial(pod=self._trial.pod, claims=claims)
        return placement.outcome(trial, near, node).fits


def _candidates(
    outcome: NodeOutcome, trial: Trial, nodes: Mapping[str, Document]
) -> Iterator[_Candidate]:
    asked = dict(placement.wanted_devices(trial.waiting))
    for card in outcome.cards:
        for request, rejection in card.rejections.items():
            if rejection is not None and rejection.cause in (Cause.CAPACITY, Cause.EXCLUSIVE):
                yield _Candidate(
                    node=nodes[outcome.name],
                    card=card,
                    wanted=asked[request],
                    share=_free_share(asked[request], card),
                )


def _taken(card: Card) -> Mapping[str, Quantity]:
    found = usage.Usage()
    for holder in card.holders:
        found.add(card.device.id, holder)
    return found.taken(card.device.id)


def _free_share(wanted: Wanted, card: Card) -> float:
    asked = consumable_capacity.consumed(wanted.amounts, card.device.capacity)
    if any(holder.amounts is None and not holder.is_admin for holder in card.holders):
        return 0.0
    taken = _taken(card)
    shares = [
        (card.device.capacity[name].value - taken.get(name, Quantity(0))).nano / amount.nano
        for name, amount in asked.items()
        if amount.nano
    ]
    return min([1.0, *shares])


def _free_amounts(candidate: _Candidate) -> dict[str, Quantity] | None:
    """Return the amounts of the request, reduced to what is free; None if too little is."""
    device, taken = candidate.card.device, _taken(candidate.card)
    if candidate.share <= 0 or not device.is_shared:
        return None
    amounts = dict(candidate.wanted.amounts)
    for name, amount in consumable_capacity.consumed(
        candidate.wanted.amounts, device.capacity
    ).items():
        free = device.capacity[name].value - taken.get(name, Quantity(0))
        if amount > free:
            nano = free.nano
            if free.family == "binary":
                nano -= nano % _ROUNDED_DOWN_TO
            amounts[name] = Quantity(nano, free.family)
    return amounts


def _with_amounts(claim: Document, wanted: Wanted, amounts: Mapping[str, Quantity]) -> Document:
    """Return the claim with these amounts in every request that asks for what this one does."""
    if (claim.get("status") or {}).get("allocation"):
        return claim
    result = copy.deepcopy(dict(claim))
    texts = {name: str(amount) for name, amount in amounts.items()}
    for request in result["spec"]["devices"]["requests"]:
        for exact in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if exact is not None and _asks_for(exact, wanted):
                exact["capacity"] = {"requests": dict(texts)}
    return result


def _asks_for(exact: Document, wanted: Wanted) -> bool:
    named = (exact.get("capacity") or {}).get("requests") or {}
    amounts = {name: quantity.parse(text) for name, text in named.items()}
    return exact["deviceClassName"] == wanted.device_class and amounts == dict(wanted.amounts)


def _size(holder: Holder) -> int:
    """Return a number by which a small share sorts before a large one; exclusive ones are last."""
    if holder.amounts is None:
        return 2**200
    return max((amount.nano for amount in holder.amounts.values()), default=0)
