"""Metadata fields that the server itself writes."""

import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from dra_simulator.api.strategy import Json

_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_GENERATED_BASE_LENGTH: Final = 58

_NOT_AT_CREATE: Final = (
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "generation",
    "managedFields",
)
_NEVER_STORED: Final = ("managedFields", "selfLink", "resourceVersion")
_KEPT_AT_CHANGE: Final = (
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
)


def timestamp(after_seconds: int = 0) -> str:
    """Return the time some seconds from now, in the API's format."""
    moment = datetime.now(UTC) + timedelta(seconds=after_seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def as_int(value: object) -> int:
    """Return a decoded integer; 0 if it is absent."""
    return value if isinstance(value, int) else 0


def fill(metadata: Json, namespace: str) -> None:
    """Complete the metadata of a new object; the namespace of a cluster-scoped one is ""."""
    base = metadata.get("generateName")
    if not metadata.get("name") and isinstance(base, str) and base:
        suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
        metadata["name"] = base[:_GENERATED_BASE_LENGTH] + suffix
    for name in _NOT_AT_CREATE:
        metadata.pop(name, None)
    if namespace:
        metadata["namespace"] = namespace
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = timestamp()


def can_be_removed(metadata: Mapping[str, object]) -> bool:
    """Return True if an object in deletion has neither finalizers nor a grace period left."""
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and as_int(metadata.get("deletionGracePeriodSeconds")) == 0
    )


def mark(metadata: Json, grace: int, *, counts: bool) -> bool:
    """Mark an object as deleted; return False if it already is, with no longer a grace period.

    Args:
        grace: Seconds until the deletion time.
        counts: Increment the generation when the object is first marked.
    """
    marked_before = "deletionTimestamp" in metadata
    if marked_before:
        if as_int(metadata.get("deletionGracePeriodSeconds")) <= grace:
            return False
    elif counts:
        metadata["generation"] = as_int(metadata.get("generation")) + 1
    metadata["deletionTimestamp"] = timestamp(grace)
    metadata["deletionGracePeriodSeconds"] = grace
    return True


def keep(new: Json, old: Mapping[str, object]) -> None:
    """Copy the fields that no request can change from the old metadata to the new."""
    for name in (*_NEVER_STORED, *_KEPT_AT_CHANGE):
        new.pop(name, None)
    new.update({name: old[name] for name in _KEPT_AT_CHANGE if name in old})
