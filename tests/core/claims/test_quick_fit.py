"""Admission by sums, compared with fit() on random nodes: the same records, and never a guess."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims import tenancy
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation
from tensorfusion_dra.core.claims.fit import NodeOffer, fit
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.quick_fit import quick_fit
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.claims.tenants import NodeTenants
from tensorfusion_dra.core.devices.gpu import HostResources
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import allocated_claim
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import HAMI_CORE, RULES, node_offer
from tests.support.builders.policies import share_policy

STEPS = 60
OVERSUBSCRIBING = replace(
    NODE,
    oversubscription=Oversubscription(
        tflops_percent=150, host_memory_percent=50, host_disk_percent=0
    ),
)
HOST = HostResources(memory_bytes=128 * GIB)


def random_offer(chance: random.Random) -> NodeOffer:
    rules = replace(RULES, overcommit_limits=chance.random() < 0.2)
    node = OVERSUBSCRIBING if chance.random() < 0.3 else NODE
    offer = node_offer(*gpus(chance.choice([1, 2])), node=node, host=HOST, rules=rules)
    return replace(offer, enforcer=HAMI_CORE.name) if chance.random() < 0.3 else offer


def random_allocation(chance: random.Random, offer: NodeOffer, number: int) -> Allocation:
    device = chance.choice([*offer.devices])
    if chance.random() < 0.05:
        return exclusive_allocation(device, admin_access=chance.random() < 0.5)
    share = chance.choice([number, number, number, number, number, 1])
    tflops = chance.choice(["1", "3", "3", "30"])
    return allocation(device, share, tflops=tflops, vram=f"{chance.choice([16, 1024, 8192])}Mi")


def random_claim(
    chance: random.Random, offer: NodeOffer, number: int
) -> tuple[AllocatedClaim, list[SharePolicy]]:
    parts = [
        random_allocation(chance, offer, 10 * number + part)
        for part in range(chance.choice([1, 1, 1, 2]))
    ]
    isolation = chance.choice([Isolation.SOFT] * 12 + [Isolation.HARD, Isolation.SHARED])
    limit = chance.choice(["", "", "", "9Gi", "60Gi"])
    tflops = chance.choice(["", "", "", "35", "200"])
    policy = share_policy(vram=limit, tflops=tflops, isolation=isolation)
    return allocated_claim(f"c{number}", *parts), [policy] * len(parts)


def beside(claim: AllocatedClaim, records: dict[str, PreparedClaim]) -> list[PreparedClaim]:
    """Return the records with shares of the claim's devices."""
    devices = {each.device for each in claim.allocations}
    return [r for r in records.values() if devices & {share.device for share in r.shares}]


def admitted(
    claim: AllocatedClaim,
    policies: list[SharePolicy],
    offer: NodeOffer,
    records: dict[str, PreparedClaim],
    tenants: NodeTenants,
) -> str:
    """Admit the claim by both ways, and compare them; return what quick_fit() decided."""
    quick, refusal = None, ""
    try:
        quick = quick_fit(claim, policies, offer, tenants)
    except ClaimError as error:
        refusal = str(error)
    if refusal:
        with pytest.raises(ClaimError, match=f"^{re.escape(refusal)}$"):
            fit(claim, policies, offer, ())
        return "refused alone"
    try:
        whole = fit(claim, policies, offer, beside(claim, records))
    except ClaimError:
        assert quick is None
        return "refused beside others"
    if quick is not None:
        assert replace(quick, sequence=0) == replace(whole.claim, sequence=0)
        assert quick.sequence >= whole.claim.sequence
        assert whole.changed == ()
    for other in whole.changed:
        tenants.remove(records[other.ref.uid])
        tenants.add(other)
        records[other.ref.uid] = other
    record = quick or whole.claim
    tenants.add(record)
    tenants.mark_divided(record)
    records[record.ref.uid] = record
    return "undecided" if quick is None else "quick"


def removed(
    uid: str, offer: NodeOffer, records: dict[str, PreparedClaim], tenants: NodeTenants
) -> None:
    """Remove a claim, and divide its cards; limits may grow only if the sums say so."""
    gone = records.pop(uid)
    tenants.remove(gone)
    devices = {share.device: offer.devices[share.device] for share in gone.shares}
    before = list(records.values())
    for new, old in zip(
        tenancy.with_divided_limits(before, devices, offer.rules), before, strict=True
    ):
        if new != old:
            assert tenants.can_lend(gone)
            tenants.remove(old)
            tenants.add(new)
            records[new.ref.uid] = new
    tenants.mark_divided(gone)


@pytest.mark.parametrize("seed", range(10))
def test_sums_decide_as_the_records_do(seed: int) -> None:
    seen: Counter[str] = Counter()

    for number in range(4):
        compare(random.Random(f"{seed}-{number}"), seen)

    assert seen.keys() >= {"quick", "undecided", "refused beside others"}, seen


def compare(chance: random.Random, seen: Counter[str]) -> None:
    """Admit and remove claims of a random node; compare each decision and all sums."""
    offer = random_offer(chance)
    records: dict[str, PreparedClaim] = {}
    tenants = NodeTenants((), offer.devices, offer.rules)

    for number in range(STEPS):
        if records and chance.random() < 0.25:
            removed(chance.choice([*records]), offer, records, tenants)
        else:
            claim, policies = random_claim(chance, offer, number + 1)
            seen[admitted(claim, policies, offer, records, tenants)] += 1

        again = NodeTenants(list(records.values()), offer.devices, offer.rules)
        for name, card in tenants.cards.items():
            assert replace(card, sequence=0) == replace(again.cards[name], sequence=0)


@pytest.mark.parametrize("wanted", ["", "2Gi"])
def test_a_thousand_claims_are_admitted_without_reading_a_record(wanted: str) -> None:
    """Their compute, rounded up to whole percent, adds up to more than the card."""
    (gpu,) = gpus(1)
    offer = node_offer(gpu)
    tenants = NodeTenants((), offer.devices, offer.rules)
    (card,) = tenants.cards.values()

    for number in range(1000):
        claim = allocated_claim(
            f"c{number}", allocation(card.device.name, number, tflops="100m", vram="16Mi")
        )
        policy = share_policy(vram=wanted if number < 10 else "")
        record = quick_fit(claim, [policy], offer, tenants)
        assert record is not None
        tenants.add(record)

    assert card.reserved.sm_percent > card.total.sm_percent
    assert card.lent.vram_bytes == (10 * (2 * GIB - 16 * MIB) if wanted else 0)
