"""The ResourceClaims of a pod: those it names, and those that Kubernetes creates for it."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

Json = dict[str, Any]

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


def extended_name(pod: Mapping[str, Any]) -> str | None:
    """Return the name of the claim that kube-scheduler made for the pod's extended resources.

    None if it made none (KEP-5004).
    """
    made = as_map(as_map(pod.get("status")).get("extendedResourceClaimStatus"))
    return str(made["resourceClaimName"]) if made.get("resourceClaimName") else None


def created(pod: Mapping[str, Any], entry: str, template: Mapping[str, Any]) -> Json:
    """Return the claim that Kubernetes creates from a template for an entry of the pod.

    Labels and annotations come from the template's spec.metadata
    (pkg/controller/resourceclaim/controller.go).
    """
    metadata, spec = as_map(pod.get("metadata")), as_map(template.get("spec"))
    copied = as_map(spec.get("metadata"))
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata.get("name"),
        "uid": metadata.get("uid", ""),
        "controller": True,
    }
    return {
        "apiVersion": template.get("apiVersion"),
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{metadata.get('name')}-{entry}",
            "namespace": metadata.get("namespace"),
            "labels": dict(as_map(copied.get("labels"))),
            "annotations": {**as_map(copied.get("annotations")), POD_CLAIM_ANNOTATION: entry},
            "ownerReferences": [owner],
        },
        "spec": copy.deepcopy(dict(as_map(spec.get("spec")))),
    }
