"""Claims inside the driver: allocated by the scheduler, and fitted to a node by the driver.

For claims as the API server stores them, see tests.support.builders.stored_claims.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tensorfusion_dra.core.claims import admit, lending
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.lending import Devices
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tests.support.builders.nodes import ENFORCERS
from tests.support.builders.policies import DEFAULTS


def claim_ref(name: str) -> ClaimRef:
    """Return a reference to a claim in the namespace default."""
    return ClaimRef(namespace="default", name=name, uid=f"uid-{name}")


def allocated_claim(name: str, *allocations: Allocation, **changes: Any) -> AllocatedClaim:
    """Return a claim with these allocation results; changes set its other attributes."""
    return AllocatedClaim(ref=claim_ref(name), allocations=allocations, **changes)


def claim_admission(
    claim: AllocatedClaim,
    *,
    on: ClaimFacts,
    beside: Iterable[PreparedClaim] = (),
    policy: SharePolicy = DEFAULTS,
    damaged: Mapping[str, Devices] = {},
) -> PreparedClaim:
    """Return the record of a claim with the same policy for every share of the claim."""
    facts = replace(on, policies=[policy] * len(claim.allocations))
    return admitted(claim, facts, beside, damaged)


def admitted(
    claim: AllocatedClaim,
    facts: ClaimFacts,
    beside: Iterable[PreparedClaim] = (),
    damaged: Mapping[str, Devices] = {},
    enforcers: Mapping[str, Enforcer] = ENFORCERS,
) -> PreparedClaim:
    """Return the record of a claim, with the limits that it has beside the other claims."""
    others = [other for other in beside if other.ref.uid != claim.ref.uid]
    record = admit.record(claim, replace(facts, group=claim.group))
    enforcer = enforcers[record.enforcer]
    record = admit.enforceable(record, enforcer, "", replace(facts, group=claim.group))

    def pod_folder(each: PreparedClaim) -> str:
        known = enforcers.get(each.enforcer)
        return known.pod_folder(each) if known else ""

    admit.check(record, facts, pod_folder, others, damaged)
    devices = {share.device for share in record.shares}
    tenants = [each for each in others if devices & {share.device for share in each.shares}]
    last = max((each.sequence for each in tenants), default=0)
    full = [each for uid, each in damaged.items() if uid != claim.ref.uid]
    claims = [*tenants, replace(record, sequence=last + 1)]
    return lending.divided(claims, facts.rules, devices, full)[-1]


def claim_record(
    name: str, *allocations: Allocation, on: ClaimFacts, policy: SharePolicy = DEFAULTS
) -> PreparedClaim:
    """Return the record of a claim on a node that has no other claims."""
    return claim_admission(allocated_claim(name, *allocations), on=on, policy=policy)
