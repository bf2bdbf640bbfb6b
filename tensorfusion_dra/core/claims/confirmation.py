"""Whether a record is of the allocation that its claim has at the API server.

A claim keeps its UID while it is deallocated and allocated again, so the UID alone does not tell.
Which record the kubelet's repeated call is answered from, and which record is freed, follows from
two questions:

- Is the record of this very allocation (``is_of``)? Only then it answers a call.
- Does the claim hold nothing of this node any more (``why_gone``)? Only then it is freed. A claim
  that is allocated here anew is not gone: as long as the kubelet has not asked again, a container
  may run with the recorded share. Example: a pod was deleted by force, its claim went to another
  pod of this node, and the kubelet, which took the claim for prepared, gave it the old devices.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices import device as devices
from tensorfusion_dra.core.errors import RetryableError

Json = Mapping[str, Any]


def is_of(record: PreparedClaim, claim: AllocatedClaim) -> bool:
    """Whether a record is of the claim's present allocation.

    The scheduler makes a new ID for every share, so equal share IDs mean the same allocation. A
    device that is given alone has no share ID, and a claim can get the same device twice. Then the
    pods decide: a claim is deallocated only when no pod is left in reservedFor, so a recorded pod
    that is still there proves that the allocation is the same.
    """
    recorded = Counter(
        (s.request, s.pool, s.device, s.share_id, s.admin_access) for s in record.shares
    )
    allocated = Counter(
        (a.request, a.pool, a.device, a.share_id, a.admin_access) for a in claim.allocations
    )
    if recorded != allocated:
        return False
    if all(share.share_id is not None for share in record.shares):
        return True
    return record.pods == claim.pods or bool({*record.pods} & {*claim.pods})


def why_gone(held: PreparedClaim | ClaimRef, stored: Json) -> str:
    """Why the claim holds nothing of this node any more; "" if it does.

    Args:
        held: The record; or the claim alone, if nothing but its existence is known.
        stored: The ResourceClaim of its namespace and name.

    Raises:
        RetryableError: That is no ResourceClaim.
    """
    ref = held.ref if isinstance(held, PreparedClaim) else held
    try:
        return _why_gone(held, ref, stored)
    except (KeyError, TypeError, AttributeError) as error:
        raise RetryableError(f"claim {ref}: found no ResourceClaim: {error!r}"[:500]) from error


def _why_gone(held: PreparedClaim | ClaimRef, ref: ClaimRef, stored: Json) -> str:
    uid = (stored.get("metadata") or {}).get("uid")
    if not isinstance(uid, str):
        raise RetryableError(f"claim {ref}: found an answer without a UID")
    if uid != ref.uid:
        return f"replaced by UID {uid}"
    allocation = (stored.get("status") or {}).get("allocation")
    if not allocation:
        return "not allocated"
    results = (allocation.get("devices") or {}).get("results") or []
    pools = {str(each.get("pool")) for each in results if each.get("driver") == names.DRIVER}
    if not pools:
        return "allocated without a device of this driver"
    if isinstance(held, PreparedClaim):
        here = {devices.node_name(share.pool) for share in held.shares}
        if not here & {devices.node_name(pool) for pool in pools}:
            return f"allocated from {', '.join(sorted(pools))}, not on this node"
    return ""
