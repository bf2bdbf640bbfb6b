"""The ResourceClaims that a pod names."""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
"""On a created claim: the entry of the pod's spec.resourceClaims."""


def entries(pod: Mapping[str, Any]) -> list[Mapping[str, object]]:
    """Return the entries of the pod's spec.resourceClaims."""
    return [as_map(each) for each in as_list(as_map(pod.get("spec")).get("resourceClaims"))]


def stored_name(pod: Mapping[str, Any], entry: Mapping[str, object]) -> str | None:
    """Return the name of an entry's claim; "" if none is created yet, None if it needs none.

    The names of claims made from templates are in the pod's status (core/v1, PodStatus).
    """
    if isinstance(entry.get("resourceClaimName"), str):
        return str(entry["resourceClaimName"])
    for made in map(as_map, as_list(as_map(pod.get("status")).get("resourceClaimStatuses"))):
        if name_of(made) == name_of(entry):
            found = made.get("resourceClaimName")
            return None if found is None else str(found)
    return ""


def names_by_entry(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the pod's claims that exist, by the names of their entries."""
    found = {name_of(entry): stored_name(pod, entry) for entry in entries(pod)}
    return {entry: claim for entry, claim in found.items() if claim}
