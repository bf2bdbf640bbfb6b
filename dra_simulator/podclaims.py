"""Relations between pods, their claims and the components that act on them, in the API."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dra_simulator.rest import Json
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import resource_claims

Document = Mapping[str, Any]

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
"""Set on every allocated claim, so that it stays until it is released (resource/v1 Finalizer)."""

_TERMINAL: Final = {"Succeeded", "Failed"}


class ClaimNotCreatedError(DriverError):
    """A pod's claim has not been created from its template yet."""


def text(document: Document) -> str:
    """Return ``<namespace>/<name>``."""
    metadata = document["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def uid(document: Document) -> str:
    """Return the object's UID."""
    return str(document["metadata"]["uid"])


def claim_name(pod: Document, entry: Document) -> str | None:
    """Return the name of the claim of an entry in a pod's spec; None if the entry needs no claim.

    Source: resourceclaim.Name in dynamic-resource-allocation/resourceclaim.

    Raises:
        ClaimNotCreatedError: The claim has not been created from its template yet.
    """
    name = resource_claims.stored_name(pod, entry)
    if name == "":
        raise ClaimNotCreatedError(f'pod "{text(pod)}": ResourceClaim not created yet')
    return name


def claim_entries(pod: Document) -> tuple[Document, ...]:
    """Return the entries of the pod's spec.resourceClaims."""
    return tuple((pod.get("spec") or {}).get("resourceClaims") or ())


def claim_names(pod: Document) -> list[str]:
    """Return the names of all of a pod's claims.

    Raises:
        ClaimNotCreatedError: One of them has not been created yet.
    """
    return [name for entry in claim_entries(pod) if (name := claim_name(pod, entry))]


def is_done(pod: Document) -> bool:
    """Return True if the pod will not run any more."""
    if (pod.get("status") or {}).get("phase") in _TERMINAL:
        return True
    return "deletionTimestamp" in pod["metadata"] and not (pod.get("spec") or {}).get("nodeName")


def is_owner(pod: Document, claim: Document) -> bool:
    """Return True if the claim was created for the pod."""
    return any(
        owner.get("controller") and owner["uid"] == uid(pod)
        for owner in claim["metadata"].get("ownerReferences") or ()
    )


def is_reserved(claim: Document, pod: Document) -> bool:
    """Return True if the claim is reserved for the pod."""
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return any(consumer["uid"] == uid(pod) for consumer in reserved)


def condition(kind: str, *, status: bool, reason: str = "", message: str = "") -> Json:
    """Return a pod condition with the current time as its transition time."""
    made = {"type": kind, "status": str(status), "lastTransitionTime": now()}
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def with_condition(conditions: Iterable[Document], new: Json) -> list[Json]:
    """Return the conditions with one replaced; the transition time changes only with the status."""
    kept = []
    for old in conditions:
        if old["type"] != new["type"]:
            kept.append(dict(old))
        elif old["status"] == new["status"]:
            new = {**new, "lastTransitionTime": old.get("lastTransitionTime")}
    return [*kept, new]


def now() -> str:
    """Return the current time in the format of the API."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
