"""What the server itself writes into metadata."""

import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from tensorfusion_dra.simulator.api.strategy import Json

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
    """The time as the API writes it, some seconds from now."""
    moment = datetime.now(UTC) + timedelta(seconds=after_seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def as_int(value: object) -> int:
    """A decoded integer; 0 if it is absent."""
    return value if isinstance(value, int) else 0


def fill(metadata: Json, namespace: str) -> None:
    """Makes the metadata of a create that of a new object; "" for outside namespaces."""
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


def may_go(metadata: Mapping[str, object]) -> bool:
    """Whether the last finalizer of an object in deletion has gone."""
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and as_int(metadata.get("deletionGracePeriodSeconds")) == 0
    )


def mark(metadata: Json, grace: int, *, counts: bool) -> bool:
    """Sets the deletion's time; False if as early a one is set already."""
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
    """Gives the metadata of a change what of the old one no request can change."""
    for name in (*_NEVER_STORED, *_KEPT_AT_CHANGE):
        new.pop(name, None)
    new.update({name: old[name] for name in _KEPT_AT_CHANGE if name in old})
