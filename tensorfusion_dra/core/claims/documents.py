"""The limits document of a claim, which programs on the node read, and what is left of a claim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core.claims import prepared
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.claims.share_policy import API_VERSION
from tensorfusion_dra.core.devices.gpu import device_name

LIMITS_KIND: Final = "ClaimLimits"


def limits_document(claim: PreparedClaim) -> dict[str, Any]:
    """Return the claim's document.

    The document is rewritten whenever a limit changes, and removed with the claim.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": LIMITS_KIND,
        "claim": {
            "namespace": claim.ref.namespace,
            "name": claim.ref.name,
            "uid": claim.ref.uid,
        },
        "pods": [{"name": pod.name, "uid": pod.uid} for pod in claim.pods],
        "enforcer": claim.enforcer,
        "gpus": {
            uuid: limit.as_json()
            for uuid, limit in prepared.by_uuid((s.gpu_uuid, s.limit) for s in claim.shares).items()
        },
        "shares": [
            {
                "gpuUUID": share.gpu_uuid,
                "request": share.request,
                "shareID": share.share_id,
                "adminAccess": share.admin_access,
                "isolation": share.isolation.value,
                "qos": share.qos.value,
                "consumed": {name: str(amount) for name, amount in share.consumed.items()},
            }
            | (
                {"limits": share.limit.as_json() | {"clamped": share.clamped}}
                if share.limit
                else {}
            )
            for share in claim.shares
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Remains of a claim whose record cannot be read, as its limits document has them.

    Attributes:
        devices: Those of its shares.
        enforcer: The claim's.
        limits: By device and share ID.
    """

    ref: ClaimRef
    devices: frozenset[str]
    enforcer: str
    limits: Mapping[tuple[str, str | None], Limit]


def remains(found: object) -> Remains | None:
    """Return what a limits document says; None if the value is not such a document."""
    try:
        document: Any = found
        named, shares = document["claim"], document["shares"]
        texts = [named["namespace"], named["name"], named["uid"], document["enforcer"]]
        by_share = {
            (device_name(share["gpuUUID"]), share["shareID"]): share.get("limits")
            for share in shares
        }
        given = {key: Limit.from_json(limit) for key, limit in by_share.items() if limit}
    except (KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(each, str) for each in texts) or not all(texts[:3]):
        return None
    namespace, name, uid, enforcer = texts
    return Remains(
        ref=ClaimRef(namespace=namespace, name=name, uid=uid),
        devices=frozenset(device for device, _ in by_share),
        enforcer=enforcer,
        limits=given,
    )
