"""Device metadata: what a container may read of its devices in a file (KEP-5304).

Each request of a claim has a file of its own, so that a container sees only the requests that it
uses. A file is a stream of JSON objects with the same content, one for each version of the API,
the newest first; a reader takes the first version that it knows. The paths in the container are
those of k8s.io/dynamic-resource-allocation/api/metadata, where KubeVirt looks for them.

What a file says is fixed when its claim is prepared: it is part of the claim's record. It changes
only after a reboot, when no earlier container is left: then the attributes are read again.

Example: pod `train` has a claim `gpu` of a template, whose request `card` got gpu-0. The node has
the file `<claim UID>_card.json`, and the pod's container has it as
/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/card/<driver>-metadata.json
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.prepared import Attributes, DeviceMetadata, Mount, PreparedClaim
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.resource_claims import POD_CLAIM_ANNOTATION

_SEPARATOR: Final = "_"
"""Between UID and request in a file's name; neither of them can contain it."""


def of_claim(claim: AllocatedClaim, devices: Mapping[str, Device]) -> DeviceMetadata:
    """Return the metadata of the claim's devices.

    Args:
        claim: The allocated claim.
        devices: The node's devices by name.

    Raises:
        ClaimError: The annotation with the claim's name in the pod is no such name. It becomes
            part of a path in the container.
    """
    pod_claim_name = claim.annotations.get(POD_CLAIM_ANNOTATION, "")
    # JSON strings can hold lone surrogates, which the rules cannot encode as bytes.
    if pod_claim_name and (
        not pod_claim_name.isascii() or any(name_rules.label("", pod_claim_name))
    ):
        raise ClaimError(
            f"claim {claim.ref}: annotation {POD_CLAIM_ANNOTATION}: found "
            f"{pod_claim_name[:80]!a}, expected the name of a claim in a pod's spec"
        )
    return DeviceMetadata(
        attributes=_attributes((each.device for each in claim.allocations), devices),
        subrequests={
            each.request: each.subrequest for each in claim.allocations if each.subrequest
        },
        pod_claim_name=pod_claim_name,
    )


def refreshed(metadata: DeviceMetadata, devices: Mapping[str, Device]) -> DeviceMetadata:
    """Return the metadata with the devices' present attributes; the same one if none changed.

    Args:
        metadata: As recorded.
        devices: The node's devices by name. A device that is missing keeps its attributes.
    """
    attributes = {**metadata.attributes, **_attributes(metadata.attributes, devices)}
    if attributes == metadata.attributes:
        return metadata
    return replace(metadata, attributes=attributes, generation=metadata.generation + 1)


def _attributes(wanted: Iterable[str], devices: Mapping[str, Device]) -> dict[str, Attributes]:
    return {name: devices[name].attributes_as_api() for name in wanted if name in devices}


def documents(
    claim: PreparedClaim, metadata: DeviceMetadata
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the objects of each file, by its name without .json."""
    return {
        file_name(claim.ref.uid, request): _objects(claim, metadata, request)
        for request in requests(claim)
    }


def requests(claim: PreparedClaim) -> tuple[str, ...]:
    """Return the claim's requests, in the order of the shares."""
    return tuple(dict.fromkeys(share.request for share in claim.shares))


def mounts(claim: PreparedClaim, metadata: DeviceMetadata, folder: str) -> dict[str, Mount]:
    """Return the mount of each request's file, by request.

    Args:
        claim: The claim.
        metadata: The claim's.
        folder: Folder of the files on the host.
    """
    kind, name = names.METADATA_OF_CLAIMS, claim.ref.name
    if metadata.pod_claim_name:
        kind, name = names.METADATA_OF_TEMPLATES, metadata.pod_claim_name
    return {
        request: Mount(
            host_path=f"{folder}/{file_name(claim.ref.uid, request)}.json",
            container_path=f"{names.METADATA_ROOT}/{kind}/{name}/{request}/{names.METADATA_FILE}",
        )
        for request in requests(claim)
    }


def file_name(uid: str, request: str) -> str:
    """Return the name of a request's file, without .json."""
    return f"{uid}{_SEPARATOR}{request}"


def claim_uid(name: str) -> str:
    """Return the UID of the claim to which a file belongs, from its name without .json."""
    return name.partition(_SEPARATOR)[0]


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
