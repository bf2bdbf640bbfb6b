"""What a hypervisor on the node reads of a prepared claim: every share with its limits, by UUID."""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_parameters import API_VERSION

KIND: Final = "ClaimLimits"


def document(claim: PreparedClaim) -> dict[str, Any] | None:
    """The document; None if the claim holds none of our devices.

    It is written anew whenever a limit changes, and removed with the claim.
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
    """The claim that such a document is about; None if it is none."""
    claim = found.get("claim") if isinstance(found, Mapping) else None
    if not isinstance(claim, Mapping):
        return None
    named = [claim.get(key) for key in ("namespace", "name", "uid")]
    if not all(isinstance(each, str) and each for each in named):
        return None
    namespace, name, uid = named
    return ClaimRef(namespace=str(namespace), name=str(name), uid=str(uid))


def _share(share: PreparedShare) -> dict[str, Any]:
    told: dict[str, Any] = {
        "gpuUUID": share.gpu_uuid,
        "request": share.request,
        "shareID": share.share_id,
        "adminAccess": share.admin_access,
        "isolation": share.isolation.value,
        "qos": share.qos.value,
        "consumed": {name: str(amount) for name, amount in share.consumed.items()},
    }
    if share.limit is not None:
        told["limits"] = {**share.limit.as_json(), "clamped": share.clamped}
    return told
