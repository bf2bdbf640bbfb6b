"""All files of a prepared claim, computed from its record, and the document with its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tensorfusion_dra.core.claims import cdi, device_metadata, limits
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import Enforcer, Needs
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import API_VERSION
from tensorfusion_dra.core.devices.gpu import device_name
from tensorfusion_dra.core.errors import ClaimError

LIMITS_KIND: Final = "ClaimLimits"


def limits_document(claim: PreparedClaim) -> dict[str, Any] | None:
    """Return the claim's document; None if the claim has none of our devices.

    The document is rewritten whenever a limit changes, and removed with the claim.
    """
    if not claim.shares:
        return None
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
            for uuid, limit in limits.by_uuid((s.gpu_uuid, s.limit) for s in claim.shares).items()
        },
        "shares": [_limits_of_share(share) for share in claim.shares],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What a limits document still says of a claim whose record cannot be read.

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


def _limits_of_share(share: PreparedShare) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Files and folders of one prepared claim.

    Attributes:
        enforcer: Name of the claim's enforcer.
        needs: Files and folders on the host that it needs.
        limits: The limits document; None if the claim has none.
        metadata: The documents of device metadata by file name; empty if the claim has none.
        spec: The CDI spec; None if the claim has none.
    """

    claim_uid: str
    enforcer: str = ""
    needs: Needs = field(default_factory=Needs)
    limits: Mapping[str, Any] | None = None
    metadata: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    spec: Mapping[str, Any] | None = None


def plan(claim: PreparedClaim, enforcers: Mapping[str, Enforcer], *, metadata_folder: str) -> Plan:
    """Return the files and folders of the claim.

    Args:
        claim: Its record.
        enforcers: Those of the node, by name.
        metadata_folder: Host folder of the files with device metadata.

    Raises:
        ClaimError: The claim's enforcer cannot express its limits or is unknown, because settings
            changed or an earlier release took over.
    """
    if not claim.shares:
        return Plan(claim_uid=claim.ref.uid)
    enforcer = _enforcer(claim, enforcers)
    return Plan(
        claim_uid=claim.ref.uid,
        enforcer=claim.enforcer,
        needs=enforcer.needs(claim),
        limits=limits_document(claim),
        metadata=device_metadata.documents(claim),
        spec=cdi.spec(claim, enforcer, metadata_folder=metadata_folder),
    )


def needs(claim: PreparedClaim, enforcers: Mapping[str, Enforcer]) -> Needs:
    """Return the needs of the claim's enforcer; none if it is unknown or refuses by now."""
    if not claim.shares:
        return Needs()
    try:
        return _enforcer(claim, enforcers).needs(claim)
    except ClaimError:
        return Needs()


def _enforcer(claim: PreparedClaim, enforcers: Mapping[str, Enforcer]) -> Enforcer:
    enforcer = enforcers.get(claim.enforcer)
    if enforcer is None:
        # A later release may have written the record; only this claim fails.
        raise ClaimError(
            f"claim {claim.ref}: found the enforcer {claim.enforcer!r}, "
            f"expected one of {sorted(enforcers)}"
        )
    return enforcer
