"""Whether the API server still says of a claim what this node has recorded."""

from collections.abc import Mapping
from typing import Any

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.prepared import PreparedClaim

Json = Mapping[str, Any]


def why_gone(held: PreparedClaim | ClaimRef, stored: Json) -> str:
    """Why the claim does not hold its shares any more; "" if it does.

    Args:
        held: The record; or the claim alone, if nothing but its existence is known.
        stored: The ResourceClaim of its namespace and name.

    Raises:
        RetryableError: That is no ResourceClaim.
    """
    ref = held.ref if isinstance(held, PreparedClaim) else held
    uid = (stored.get("metadata") or {}).get("uid")
    if not isinstance(uid, str):
        raise RetryableError(f"claim {ref}: found an answer without a UID")
    if uid != ref.uid:
        return f"replaced by UID {uid}"
    allocation = (stored.get("status") or {}).get("allocation")
    if not allocation:
        return "not allocated"
    results = (allocation.get("devices") or {}).get("results") or []
    ours = {_key(result) for result in results if result.get("driver") == names.DRIVER}
    if not ours:
        return "allocated without a device of this driver"
    if isinstance(held, PreparedClaim):
        missing = {(s.pool, s.device, s.share_id) for s in held.shares} - ours
        if missing:
            lost = sorted(device for _, device, _ in missing)
            return f"allocated without its share of {', '.join(lost)}"
    return ""


def _key(result: Json) -> tuple[Any, Any, Any]:
    return result.get("pool"), result.get("device"), result.get("shareID")
