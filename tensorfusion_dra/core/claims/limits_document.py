"""Limits document of a prepared claim, for a hypervisor on the node: its shares and limits."""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import API_VERSION

KIND: Final = "ClaimLimits"


def document(claim: PreparedClaim) -> dict[str, Any] | None:
    """Return the claim's document; None if the claim has none of our devices.

    The document is rewritten whenever a limit changes, and removed with the claim.
    """
    if not claim.shares:
        return None
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "claim": {
            "namespace": claim.ref.namespace,
            "name": claim.ref.name,
            "uid": claim.ref.uid,
        },
        "pods": [{"name": pod.name, "uid": pod.uid} for pod in claim.pods],
        "enforcer": claim.enforcer,
        "gpus": {
            uuid: limit.as_json()
            for uuid, limit in limits.by_uuid((s.gpu_uuid, s.limit) for s in claim.shares).items()
        },
        "shares": [_share(share) for share in claim.shares],
    }


def claim_ref(found: object) -> ClaimRef | None:
    """Return the claim of a limits document; None if the value is not such a document."""
    claim = found.get("claim") if isinstance(found, Mapping) else None
    if not isinstance(claim, Mapping):
        return None
    named = [claim.get(key) for key in ("namespace", "name", "uid")]
    if not all(isinstance(each, str) and each for each in named):
        return None
    namespace, name, uid = named
    return ClaimRef(namespace=str(namespace), name=str(name), uid=str(uid))


def _share(share: PreparedShare) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "gpuUUID": share.gpu_uuid,
        "request": share.request,
        "shareID": share.share_id,
        "adminAccess": share.admin_access,
        "isolation": share.isolation.value,
        "qos": share.qos.value,
        "consumed": {name: str(amount) for name, amount in share.consumed.items()},
    }
    if share.limit is not None:
        entry["limits"] = {**share.limit.as_json(), "clamped": share.clamped}
    return entry
