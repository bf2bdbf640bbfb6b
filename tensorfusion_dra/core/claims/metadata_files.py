"""The files with the metadata of a claim's devices: names, contents, and mounts (KEP-5304)."""

from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.device_metadata import DeviceMetadata
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim

_SEPARATOR: Final = "_"
"""Between UID and request in a file's name; neither of them can contain it."""


def documents(claim: PreparedClaim) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the objects of each file, by its name without .json; none without metadata."""
    if claim.metadata is None:
        return {}
    return {
        file_name(claim.ref.uid, request): _objects(claim, claim.metadata, request)
        for request in requests(claim)
    }


def file_names(claim: PreparedClaim) -> tuple[str, ...]:
    """Return the names of the claim's files, without .json; none without metadata."""
    return tuple(file_name(claim.ref.uid, request) for request in requests(claim))


def requests(claim: PreparedClaim) -> tuple[str, ...]:
    """Return the requests whose containers get a file, in the order of the shares."""
    if claim.metadata is None:
        return ()
    return tuple(dict.fromkeys(share.request for share in claim.shares))


def mounts(claim: PreparedClaim, folder: str) -> dict[str, Mount]:
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
            host_path=f"{folder}/{file_name(claim.ref.uid, request)}.json",
            container_path=f"{names.METADATA_ROOT}/{kind}/{name}/{request}/{names.METADATA_FILE}",
        )
        for request in requests(claim)
    }


def file_name(claim_uid: str, request: str) -> str:
    """Return the name of a request's file, without .json."""
    return f"{claim_uid}{_SEPARATOR}{request}"


def claim_uid(file_name: str) -> str:
    """Return the UID of the claim to which a file belongs, from its name without .json."""
    return file_name.partition(_SEPARATOR)[0]


def _objects(
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
