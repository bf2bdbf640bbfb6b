"""Device metadata: what a container may read of its devices in a file (KEP-5304).

Each request of a claim has a file of its own, so that a container sees only the requests that it
uses. A file is a stream of JSON objects with the same content, one for each version of the API,
the newest first; a reader takes the first version that it knows. The paths in the container are
those of k8s.io/dynamic-resource-allocation/api/metadata, where KubeVirt looks for them.

What a file says is fixed when its claim is prepared: it is part of the claim's record. Only a
reboot, after which no container of before is left, brings the attributes of that day.

Example: pod `train` has a claim `gpu` of a template, whose request `card` got gpu-0. The node has
the file `<claim UID>_card.json`, and the pod's container has it as
/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/card/<driver>-metadata.json
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.pod_claims import POD_CLAIM_ANNOTATION

Attributes = Mapping[str, Any]
"""A device's attributes as its ResourceSlice lists them: ``{"model": {"string": "A100"}}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetadata:
    """What the containers of a claim may know of its devices.

    Attributes:
        attributes: By device name.
        subrequests: By main request, the subrequest that a prioritized list chose.
        pod_claim_name: Name of the claim in the pod's spec, if the claim was made of a template;
            else "".
        generation: Increases with every change.
    """

    attributes: Mapping[str, Attributes]
    subrequests: Mapping[str, str] = field(default_factory=dict)
    pod_claim_name: str = ""
    generation: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return the metadata as JSON, for the ledger."""
        return {
            "attributes": dict(self.attributes),
            "subrequests": dict(self.subrequests),
            "podClaimName": self.pod_claim_name,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "DeviceMetadata":
        """Return the metadata that as_json() wrote."""
        return cls(
            attributes=kept["attributes"],
            subrequests=kept["subrequests"],
            pod_claim_name=kept["podClaimName"],
            generation=kept["generation"],
        )


def of_claim(claim: AllocatedClaim, devices: Mapping[str, Device]) -> DeviceMetadata:
    """Return what the claim's containers may know of its devices.

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
