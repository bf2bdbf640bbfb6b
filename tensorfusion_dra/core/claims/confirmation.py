"""Comparison of a record with the allocation that its claim has at the API server.

A claim keeps its UID when it is deallocated and allocated again, so the UID does not identify an
allocation. Two questions decide what happens to a record:

- Does the record describe the claim's present allocation (``describes``)? Only then the driver
  answers the kubelet's repeated call from the record.
- Has the claim no device of this node any more (``reason_gone``)? Only then the driver frees the
  record.

A claim that was allocated on this node again is not gone: until the kubelet calls again, a
container may run with the recorded share. Example: a pod is force-deleted, and its claim goes to
another pod on this node. The kubelet, which considers the claim prepared, gives that pod the old
devices.
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


def describes(record: PreparedClaim, claim: AllocatedClaim) -> bool:
    """Return True if a record describes the claim's present allocation.

    The scheduler generates a new ID for every share, so equal share IDs mean the same allocation.
    An exclusive allocation has no share ID, and a claim can get the same device twice. Then the
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


def reason_gone(recorded: PreparedClaim | ClaimRef, stored: Json) -> str:
    """Return why the claim has no device of this node any more; "" if it has one.

    Args:
        recorded: The record; or the reference, if nothing but the claim's existence is known.
            Then a device of this driver on any node counts.
        stored: The ResourceClaim with its namespace and name.

    Raises:
        RetryableError: `stored` is not a ResourceClaim.
    """
    ref = recorded.ref if isinstance(recorded, PreparedClaim) else recorded
    try:
        return _reason_gone(recorded, ref, stored)
    except (KeyError, TypeError, AttributeError) as error:
        text = f"claim {ref}: found a malformed ResourceClaim: {error!r}"
        raise RetryableError(text[:500]) from error


def _reason_gone(recorded: PreparedClaim | ClaimRef, ref: ClaimRef, stored: Json) -> str:
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
    if isinstance(recorded, PreparedClaim):
        here = {devices.node_name(share.pool) for share in recorded.shares}
        if not here & {devices.node_name(pool) for pool in pools}:
            return f"allocated from {', '.join(sorted(pools))}, not on this node"
    return ""
