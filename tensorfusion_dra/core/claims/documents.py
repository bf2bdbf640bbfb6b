"""Documents of a prepared claim: its limits, for programs on the node, and its devices' metadata.

For the CDI spec see cdi.py; for all that a claim needs on the node, plan.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import limits
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_metadata import DeviceMetadata
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import API_VERSION
from tensorfusion_dra.core.devices.device import device_name

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


_SEPARATOR: Final = "_"
"""Between UID and request in a file's name; neither of them can contain it."""


def metadata_documents(claim: PreparedClaim) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the objects of each file, by its name without .json; none without metadata."""
    if claim.metadata is None:
        return {}
    return {
        metadata_file_name(claim.ref.uid, request): _metadata_objects(
            claim, claim.metadata, request
        )
        for request in metadata_requests(claim)
    }


def metadata_file_names(claim: PreparedClaim) -> tuple[str, ...]:
    """Return the names of the claim's files, without .json; none without metadata."""
    return tuple(metadata_file_name(claim.ref.uid, request) for request in metadata_requests(claim))


def metadata_requests(claim: PreparedClaim) -> tuple[str, ...]:
    """Return the requests whose containers get a file, in the order of the shares."""
    if claim.metadata is None:
        return ()
    return tuple(dict.fromkeys(share.request for share in claim.shares))


def metadata_mounts(claim: PreparedClaim, folder: str) -> dict[str, Mount]:
    """Return the mount of each request's file, by request.

    Args:
        claim: The claim.
        folder: Folder of the files on the host.
    """
    if claim.metadata is None:
        return {}
    kind, name = names.METADATA_OF_CLAIMS, claim.ref.name
    if claim.metadata.pod_claim_name:
        kind, name = names.METADATA_OF_TEMPLATES, claim.metadata.pod_claim_name
    return {
        request: Mount(
            host_path=f"{folder}/{metadata_file_name(claim.ref.uid, request)}.json",
            container_path=f"{names.METADATA_ROOT}/{kind}/{name}/{request}/{names.METADATA_FILE}",
        )
        for request in metadata_requests(claim)
    }


def metadata_file_name(claim_uid: str, request: str) -> str:
    """Return the name of a request's file, without .json."""
    return f"{claim_uid}{_SEPARATOR}{request}"


def metadata_claim_uid(file_name: str) -> str:
    """Return the UID of the claim to which a file belongs, from its name without .json."""
    return file_name.partition(_SEPARATOR)[0]


def _metadata_objects(
    claim: PreparedClaim, metadata: DeviceMetadata, request: str
) -> tuple[dict[str, Any], ...]:
    """Return the same object in each version of the API, the newest first."""
    subrequest = metadata.subrequests.get(request)
    content: dict[str, Any] = {
        "metadata": {
            "name": claim.ref.name,
            "namespace": claim.ref.namespace,
            "uid": claim.ref.uid,
            "generation": metadata.generation,
        }
    }
    if metadata.pod_claim_name:
        content["podClaimName"] = metadata.pod_claim_name
    devices = [
        {
            "driver": names.DRIVER,
            "pool": share.pool,
            "name": share.device,
            "attributes": metadata.attributes.get(share.device, {}),
        }
        for share in claim.shares
        if share.request == request
    ]
    full_name = f"{request}/{subrequest}" if subrequest else request
    content["requests"] = [{"name": full_name, "devices": devices}]
    return tuple(
        {"apiVersion": version, "kind": names.METADATA_KIND, **content}
        for version in names.METADATA_VERSIONS
    )
