"""Metadata of objects: the fields that the server writes, and the rules for the others.

Source of the rules: apimachinery, pkg/api/validation/objectmeta.go.
"""

import re
import secrets
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from dra_simulator.api.formats import forbidden
from dra_simulator.api.kinds import Kind
from dra_simulator.api.schema import Json, elements, part
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    invalid,
    required,
    too_long,
)

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
MAX_ANNOTATION_BYTES: Final = 256 * 1024

_PLAIN_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


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


def errors(document: Json, kind: Kind) -> Iterator[FieldError]:
    """Yield the errors in an object's metadata."""
    metadata = part(document, "metadata")
    name, base = metadata.get("name"), metadata.get("generateName")
    if base:
        # Kubernetes allows a dash at the end, because random letters follow, but no dot.
        masked = re.sub(r".-$", "a", str(base))
        yield from name_rules.subdomain("metadata.generateName", masked)
    if not name:
        yield required("metadata.name", "name or generateName is required")
    elif kind.plural == "namespaces":
        yield from name_rules.label("metadata.name", name)
    else:
        yield from name_rules.subdomain("metadata.name", name)
    if metadata.get("namespace") and not kind.namespaced:
        yield forbidden("metadata.namespace", "not allowed on this type")
    yield from map_errors("metadata", metadata)
    yield from _owner_errors(list(elements(metadata.get("ownerReferences"))))
    finalizers = metadata.get("finalizers")
    for index, finalizer in enumerate(finalizers if isinstance(finalizers, list) else []):
        where = f"metadata.finalizers[{index}]"
        yield from name_rules.label_key(where, finalizer)
        if "/" not in finalizer and finalizer not in _PLAIN_FINALIZERS:
            yield invalid(
                where, finalizer, "name is neither a standard finalizer name nor qualified"
            )


def _owner_errors(owners: list[Json]) -> Iterator[FieldError]:
    path = "metadata.ownerReferences"
    for owner in owners:
        for field in ("kind", "name", "uid"):
            if not owner.get(field):
                yield invalid(f"{path}.{field}", owner.get(field, ""), "must not be empty")
        api_version = str(owner.get("apiVersion", ""))
        if not api_version or api_version.count("/") > 1:
            yield invalid(f"{path}.apiVersion", api_version, "must be a group and a version")


def map_errors(path: str, metadata: Json) -> Iterator[FieldError]:
    """Yield the errors in labels and annotations."""
    for key, value in part(metadata, "labels").items():
        yield from name_rules.label_key(f"{path}.labels", key)
        yield from name_rules.label_value(f"{path}.labels", value)
    annotations = part(metadata, "annotations")
    for key in annotations:
        yield from name_rules.label_key(f"{path}.annotations", key.lower())
    size = sum(len(key.encode()) + len(str(annotations[key]).encode()) for key in annotations)
    if size > MAX_ANNOTATION_BYTES:
        yield too_long(f"{path}.annotations", MAX_ANNOTATION_BYTES)


def finalizer_errors(metadata: Json, old_metadata: Json) -> Iterator[FieldError]:
    """Yield an error if an object that is being deleted gets new finalizers."""
    if "deletionTimestamp" not in old_metadata:
        return
    new, old = metadata.get("finalizers"), old_metadata.get("finalizers")
    new, old = (set(found) if isinstance(found, list) else set() for found in (new, old))
    if new - old:
        quoted = ", ".join(f'"{name}"' for name in sorted(new - old))
        yield forbidden(
            "metadata.finalizers",
            "no new finalizers can be added if the object is being deleted, found new finalizers"
            f" []string{{{quoted}}}",
        )
