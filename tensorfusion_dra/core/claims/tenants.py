"""Sums over the tenants of the node's cards, kept up to date instead of read from every record.

fit() and tenancy.py compare a claim with each record of its cards, so their time grows with the
number of claims. NodeTenants keeps what these comparisons need: for each card the amounts that are
taken, the limits that are lent, and the share IDs in use; for each pod its claims. Then quick_fit()
admits most claims in the same time, however many claims the node has.

Sums can tell that a claim fits and changes no other claim. If they cannot, the records decide.

Example: a card with 80Gi has 1,000 tenants with requests of 40Gi in all, and limits that are equal
to the requests. The sums are `reserved` 40Gi, `lent` 0 and `unmet` 0. A claim for 1Gi with a limit
of 2Gi fits and takes nothing back, so it gets its limit without a look at any record. If memory is
lent and the rest is too small for the claim, the card is divided anew from the records.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorfusion_dra.core.claims import consumption, tenancy
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.tenancy import LendingRules
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.sharing import Isolation

_NOTHING = Limit(sm_percent=0, vram_bytes=0)


@dataclass(slots=True, kw_only=True)
class CardTenants:
    """Sums over the shares of one card; shares with admin access count for `sequence` only.

    Attributes:
        total: What the card's tenants divide.
        taken_nano: Amounts that count against each capacity, in billionths.
        exclusive: Number of exclusive shares.
        share_ids: How many shares have each ID; more than one after a hand-written status.
        isolations: How many shares have each isolation.
        sequence: The highest sequence of a claim, possibly of one that is gone.
        reserved: Sum of the requests; a fixed limit counts as the request.
        lent: Sum of the limits above requests.
        unmet: Sum of the wanted limits above limits.
        is_divided: True if no limit would change if the card were divided now.
    """

    device: Device
    total: Limit
    taken_nano: Counter[str] = field(default_factory=Counter)
    exclusive: int = 0
    share_ids: Counter[str | None] = field(default_factory=Counter)
    isolations: Counter[Isolation] = field(default_factory=Counter)
    sequence: int = 0
    reserved: Limit = _NOTHING
    lent: Limit = _NOTHING
    unmet: Limit = _NOTHING
    is_divided: bool = True

    def is_same_card(self, device: Device) -> bool:
        """Return True if the sums hold for this device too: its card and capacities are equal."""
        return device is self.device or (
            device.gpu.milli_tflops == self.device.gpu.milli_tflops
            and device.capacity == self.device.capacity
        )

    def has_room(self, share: PreparedShare) -> bool:
        """Return True if the share certainly fits; False if the records have to decide."""
        if share.admin_access:
            return True
        if self.isolations and (share.exclusive or self.exclusive):
            return False
        if share.share_id in self.share_ids or self.isolations.keys() - {share.isolation}:
            return False
        if self.isolations and share.isolation is Isolation.SHARED:
            return False
        return all(
            self.taken_nano[name] + share.consumed[name].nano <= entry.value.nano
            or (consumption.is_provided(name) and not share.consumed[name].nano)
            for name, entry in self.device.capacity.items()
        )

    def grant(self, request: Limit, wanted: Limit, rules: LendingRules) -> Limit | None:
        """Return the limit of one more tenant; None if limits of other tenants might change.

        The new tenant is the last in order, so it is lent what the others leave.
        """
        if not self.is_divided:
            return None
        if rules.overcommit_limits:
            return tenancy.within(request, wanted, self.total)
        left = self.total - self.reserved - self.lent - request
        sm_percent, vram_bytes = _amounts(left)
        lent, unmet = _amounts(self.lent), _amounts(self.unmet)
        for amount, loan, missing in zip((sm_percent, vram_bytes), lent, unmet, strict=True):
            # The request takes back a loan that no longer fits, or that was too small already.
            if loan and (missing or amount < 0):
                return None
        return request + Limit(
            sm_percent=max(0, min(wanted.sm_percent - request.sm_percent, sm_percent)),
            vram_bytes=max(0, min(wanted.vram_bytes - request.vram_bytes, vram_bytes)),
        )

    def can_lend(self, rules: LendingRules) -> bool:
        """Return True if the limit of a tenant might grow now, because another one has left."""
        if not self.is_divided:
            return True
        spare = _amounts(self.total - self.reserved - self.lent)
        unmet = _amounts(self.unmet)
        return not rules.overcommit_limits and any(
            missing > 0 and amount > 0 for missing, amount in zip(unmet, spare, strict=True)
        )

    def add(self, claim: PreparedClaim, share: PreparedShare, rules: LendingRules) -> None:
        """Add one of the claim's shares of this card."""
        self.sequence = max(self.sequence, claim.sequence)
        if share.admin_access:
            return
        for name in self.device.capacity:
            self.taken_nano[name] += self._counted_nano(share, name)
        self.exclusive += share.exclusive
        self.share_ids[share.share_id] += 1
        self.isolations[share.isolation] += 1
        request, lent, unmet = self._lending(claim, share, rules)
        self.reserved += request
        self.lent += lent
        self.unmet += unmet

    def remove(self, claim: PreparedClaim, share: PreparedShare, rules: LendingRules) -> None:
        """Remove a share that was added."""
        if share.admin_access:
            return
        for name in self.device.capacity:
            self.taken_nano[name] -= self._counted_nano(share, name)
        self.exclusive -= share.exclusive
        _decrement(self.share_ids, share.share_id)
        _decrement(self.isolations, share.isolation)
        request, lent, unmet = self._lending(claim, share, rules)
        self.reserved -= request
        self.lent -= lent
        self.unmet -= unmet

    def _counted_nano(self, share: PreparedShare, name: str) -> int:
        return capacity.counted_amount(share.consumed, name, self.device.capacity).nano

    def _lending(
        self, claim: PreparedClaim, share: PreparedShare, rules: LendingRules
    ) -> tuple[Limit, Limit, Limit]:
        """Return the share's request, what is lent to it, and what it wants beyond that."""
        request, wanted = tenancy.demand(claim, share, self.device, rules)
        limit = share.limit or request
        unmet = Limit(
            sm_percent=max(0, wanted.sm_percent - limit.sm_percent),
            vram_bytes=max(0, wanted.vram_bytes - limit.vram_bytes),
        )
        return request, limit - request, unmet


class NodeTenants:
    """The tenants of all cards of this node; for one thread at a time.

    Attributes:
        cards: By device name. Shares of other devices are not counted.
    """

    def __init__(
        self, records: Sequence[PreparedClaim], devices: Mapping[str, Device], rules: LendingRules
    ) -> None:
        """Sum up all records.

        Args:
            devices: By name; all that claims can be admitted to.
            rules: The node's rules.
        """
        self.cards = {
            name: CardTenants(device=device, total=tenancy.total(device))
            for name, device in devices.items()
        }
        self._rules = rules
        # UIDs of claims. Until stale records are released, one name may be that of several claims.
        self._by_name: dict[str, set[str]] = {}  # by the claim's namespace/name
        self._by_pod: dict[str, set[str]] = {}  # by the pod's namespace/name
        for record in records:
            self.add(record)
        divided = tenancy.with_divided_limits(records, devices, rules)
        for new, old in zip(divided, records, strict=True):
            if new != old:
                self._mark(new, is_divided=False)

    def fit_devices(self, devices: Mapping[str, Device]) -> bool:
        """Return True if the sums hold for these devices."""
        return devices.keys() == self.cards.keys() and all(
            card.is_same_card(devices[name]) for name, card in self.cards.items()
        )

    def add(self, record: PreparedClaim) -> None:
        """Add a claim that is recorded now."""
        self._by_name.setdefault(str(record.ref), set()).add(record.ref.uid)
        for pod in record.pods:
            self._by_pod.setdefault(str(pod), set()).add(record.ref.uid)
        for share in record.shares:
            if (card := self.cards.get(share.device)) is not None:
                card.add(record, share, self._rules)

    def remove(self, record: PreparedClaim) -> None:
        """Remove a claim, as it was added."""
        _discard(self._by_name, str(record.ref), record.ref.uid)
        for pod in record.pods:
            _discard(self._by_pod, str(pod), record.ref.uid)
        for share in record.shares:
            if (card := self.cards.get(share.device)) is not None:
                card.remove(record, share, self._rules)

    def has(self, ref: ClaimRef) -> bool:
        """Return True if the claim with this UID is recorded."""
        return ref.uid in self._by_name.get(str(ref), ())

    @property
    def are_divided(self) -> bool:
        """True if no limit would change if all cards were divided now."""
        return all(card.is_divided for card in self.cards.values())

    def can_lend(self, gone: PreparedClaim) -> bool:
        """Return True if limits of other claims might grow, now that this claim is removed."""
        cards = (self.cards.get(share.device) for share in gone.shares)
        return any(card is not None and card.can_lend(self._rules) for card in cards)

    def mark_divided(self, record: PreparedClaim) -> None:
        """Note that the cards of this claim were just divided."""
        self._mark(record, is_divided=True)

    def uids_of_pods(self, pods: Iterable[PodRef]) -> set[str]:
        """Return the UIDs of the claims of pods with the namespace and name of one of these."""
        return {uid for pod in pods for uid in self._by_pod.get(str(pod), ())}

    def uids_named(self, namespace: str, names: Iterable[str]) -> set[str]:
        """Return the UIDs of the claims with one of these names."""
        return {uid for name in names for uid in self._by_name.get(f"{namespace}/{name}", ())}

    def _mark(self, record: PreparedClaim, *, is_divided: bool) -> None:
        for share in record.shares:
            if (card := self.cards.get(share.device)) is not None:
                card.is_divided = is_divided


def _amounts(limit: Limit) -> tuple[int, int]:
    return limit.sm_percent, limit.vram_bytes


def _discard(uids: dict[str, set[str]], key: str, uid: str) -> None:
    found = uids.get(key, set())
    found.discard(uid)
    if not found:
        uids.pop(key, None)


def _decrement(counts: Counter[Any], key: object) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
