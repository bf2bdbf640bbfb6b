"""Objects that requests create, change, bind and delete, as in the API server's generic registry.

Each write is atomic: it checks and stores under the store's lock.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_simulator.api import failures, patches
from dra_simulator.api import metadata as meta
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind
from dra_simulator.api.schema import Json, Schema, elements, part
from dra_simulator.api.store import Store, Stored
from dra_simulator.api.strategies import Strategy
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, invalid

Change = Callable[[Stored], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of a request.

    Attributes:
        namespace: "" for cluster-scoped objects, and for lists across all namespaces.
        name: "" for lists and creates.
        subresource: "" for the object itself.
    """

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def check(self, errors: list[FieldError]) -> None:
        """Raise 422 if there are errors in this object."""
        if errors:
            raise failures.invalid(self.kind.kind, self.kind.group, self.name, errors)

    def check_namespace(self, metadata: Json) -> None:
        """Raise 400 if the metadata names another namespace than the request."""
        if self.kind.namespaced and metadata.get("namespace", self.namespace) != self.namespace:
            raise failures.bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )

    def check_identity(self, metadata: Json, before: Stored | None) -> None:
        """Check that the metadata belongs to the stored object in its current version.

        Args:
            before: Stored object; None to check only the name and the namespace.

        Raises:
            ApiError: 400 for another name or namespace, 409 for another UID or resourceVersion.
        """
        if metadata.get("name", self.name) != self.name:
            raise failures.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL"
                f" ({self.name})"
            )
        self.check_namespace(metadata)
        if before is None:
            return
        uid = part(before.document, "metadata")["uid"]
        if metadata.get("uid") not in {None, "", uid}:
            why = (
                f"StorageError: invalid object, Code: 4, Key: /registry/{self.kind.plural}/"
                f"{self.name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID"
                f" in precondition: {metadata['uid']}, UID in object meta: {uid}"
            )
            raise failures.conflict(self.kind.plural, self.kind.group, self.name, why)
        if metadata.get("resourceVersion") not in {None, "", str(before.version)}:
            raise failures.modified(self.kind.plural, self.kind.group, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """Options of a delete.

    Attributes:
        uid, version: Preconditions on the object; None for none.
        grace_seconds: Time that a pod has to end; None for its own terminationGracePeriodSeconds.
    """

    uid: str | None = None
    version: str | None = None
    grace_seconds: int | None = None
    dry_run: bool = False

    def check(self, target: Target, before: Stored) -> None:
        """Raise 409 if the object does not meet the preconditions."""
        kind, uid = target.kind, part(before.document, "metadata")["uid"]
        why = ""
        if self.uid is not None and self.uid != uid:
            why = (
                f"the UID in the precondition ({self.uid}) does not match the UID in record"
                f" ({uid}). The object might have been deleted and then recreated"
            )
        elif self.version is not None and self.version != str(before.version):
            why = (
                f"the ResourceVersion in the precondition ({self.version}) does not match the"
                f" ResourceVersion in record ({before.version}). The object might have been"
                " modified"
            )
        if why:
            raise failures.conflict(kind.kind, kind.group, target.name, why)


class Registry:
    """All writes.

    A deleted namespace is removed at once with everything in it, because there is no namespace
    controller. Dependents of a deleted object remain, because there is no garbage collector.
    """

    def __init__(
        self, store: Store, schema: Schema, strategies: Callable[[Kind], Strategy]
    ) -> None:
        self.store: Final = store
        self.schema: Final = schema
        self._strategies: Final = strategies

    def existing(self, target: Target) -> Stored:
        """Return an object; raise 404 if it does not exist."""
        found = self.store.get(target.kind.storage, target.namespace, target.name)
        if found is None:
            raise failures.not_found(target.kind.plural, target.kind.group, target.name)
        return found

    def create(self, target: Target, decoded: Json, *, dry_run: bool = False) -> Stored:
        """Create an object.

        Raises:
            ApiError: The namespace does not exist, the name is taken or a field breaks a rule.
        """
        kind = target.kind
        document = copy.deepcopy(decoded)
        metadata = document.setdefault("metadata", {})
        assert isinstance(metadata, dict)
        target.check_namespace(metadata)
        if metadata.pop("resourceVersion", ""):
            text = "resourceVersion should not be set on objects to be created"
            raise ApiError(500, "", text)
        meta.fill(metadata, target.namespace)
        target = replace(target, name=str(metadata.get("name", "")))
        with self.store.lock:
            if target.namespace and not self.store.get("namespaces", "", target.namespace):
                raise failures.not_found("namespaces", "", target.namespace)
            strategy = self._strategies(kind)
            strategy.prepare(document, None)
            target.check([*meta.errors(document, kind), *strategy.errors(document, None)])
            if self.store.get(kind.storage, target.namespace, target.name):
                raise failures.already_exists(kind.plural, kind.group, target.name)
            if kind.has_generation:
                metadata["generation"] = 1
            document = self.schema.stored(kind.struct, document)
            return self._put(target, document, dry_run=dry_run)

    def change(self, target: Target, changed: Change, *, dry_run: bool) -> Stored:
        """Update or patch an object; changed() returns its new document.

        Raises:
            ApiError: The object does not exist, it changed meanwhile or a field breaks a rule.
        """
        with self.store.lock:
            before = self.existing(target)
            document = self._checked(target, copy.deepcopy(changed(before)), before)
            return self._replace(target, document, before, dry_run=dry_run)

    def apply(self, target: Target, wanted: Json, *, dry_run: bool) -> tuple[Stored, bool]:
        """Apply an object server-side; return it, and True if it is new.

        Raises:
            ApiError: As for change() and create().
        """
        kind = target.kind
        with self.store.lock:
            before = self.store.get(kind.storage, target.namespace, target.name)
            if before is None and not target.subresource:
                metadata = {**part(wanted, "metadata"), "name": target.name}
                return self.create(target, {**wanted, "metadata": metadata}, dry_run=dry_run), True
            before = self.existing(target)
            target.check_identity(part(wanted, "metadata"), before)
            if target.subresource:
                wanted = {target.subresource: part(wanted, target.subresource)}
            elif self._strategies(kind).has_status:
                wanted = {name: value for name, value in wanted.items() if name != "status"}
            document = patches.applied(self.schema, kind.struct, before.document, wanted)
            document = self._checked(target, copy.deepcopy(document), before)
            return self._replace(target, document, before, dry_run=dry_run), False

    def bind(self, target: Target, node: str, *, dry_run: bool) -> None:
        """Set the pod's spec.nodeName and its condition PodScheduled, as through pods/binding.

        Raises:
            ApiError: The pod does not exist, is already bound or is being deleted.
        """
        pod = replace(target, subresource="")
        with self.store.lock:
            before = self.existing(pod)
            spec, status = part(before.document, "spec"), part(before.document, "status")
            why = ""
            if "deletionTimestamp" in part(before.document, "metadata"):
                why = f"pod {pod.name} is being deleted, cannot be assigned to a host"
            elif spec.get("nodeName"):
                why = f'pod {pod.name} is already assigned to node "{spec["nodeName"]}"'
            if why:
                raise failures.conflict("pods/binding", "", pod.name, why)
            scheduled: Json = {
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": meta.timestamp(),
            }
            found = elements(status.get("conditions"))
            others = [each for each in found if each.get("type") != "PodScheduled"]
            document = {
                **before.document,
                "spec": {**spec, "nodeName": node},
                "status": {**status, "conditions": [*others, scheduled]},
            }
            document = self.schema.stored(pod.kind.struct, document)
            self._put(pod, document, before=before, dry_run=dry_run)

    def delete(self, target: Target, options: DeleteOptions) -> Stored:
        """Delete an object; return its last state.

        An object with finalizers and a pod on a node only get a deletionTimestamp.

        Raises:
            ApiError: The object does not exist or does not meet a precondition.
        """
        kind = target.kind
        with self.store.lock:
            before = self.existing(target)
            options.check(target, before)
            document = copy.deepcopy(before.document)
            metadata = part(document, "metadata")
            grace = self._strategies(kind).grace_seconds(document, options.grace_seconds)
            stays = bool(grace) or bool(metadata.get("finalizers"))
            if options.dry_run:
                return before
            if stays or grace is not None:
                marked = meta.mark(metadata, grace or 0, counts=kind.has_generation)
                if stays and not marked:
                    return before
            version = self.store.next_version()
            metadata["resourceVersion"] = str(version)
            stored = replace(before, version=version, document=document)
            if stays:
                return self.store.put(kind.storage, stored)
            self.store.remove(kind.storage, stored)
            if kind.plural == "namespaces":
                self.store.remove_namespace(target.name)
            return stored

    def delete_collection(
        self, target: Target, chooses: Callable[[Json], bool], options: DeleteOptions
    ) -> list[Stored]:
        """Delete the objects that the function chooses; return their last states."""
        with self.store.lock:
            found, _ = self.store.listed(target.kind.storage, target.namespace or None)
            chosen = [
                replace(target, namespace=stored.namespace, name=stored.name)
                for stored in found
                if chooses(stored.document)
            ]
            return [self.delete(each, options) for each in chosen]

    def _checked(self, target: Target, document: Json, before: Stored) -> Json:
        """Return the document as it would be stored.

        Raises:
            ApiError: The change breaks a rule.
        """
        kind, old = target.kind, before.document
        strategy = self._strategies(kind)
        metadata, old_metadata = part(document, "metadata"), part(old, "metadata")
        target.check_identity(metadata, before)
        if target.subresource:
            subresource = document.get(target.subresource)
            document = copy.deepcopy(old)
            document[target.subresource] = subresource or {}
            strategy.prepare_status(document, old)
            document = self.schema.stored(kind.struct, document)
            errors = list(strategy.status_errors(document, old))
        else:
            meta.keep(metadata, old_metadata)
            document["metadata"] = {"name": target.name, **metadata}
            strategy.prepare(document, old)
            errors = [
                *meta.errors(document, kind),
                *meta.finalizer_errors(metadata, old_metadata),
                *strategy.errors(document, old),
            ]
            document = self.schema.stored(kind.struct, document)
            errors += [
                invalid(path, _at(document, path), "field is immutable")
                for path in strategy.immutable
                if _at(document, path) != _at(old, path)
            ]
        target.check(errors)
        return document

    def _replace(self, target: Target, document: Json, before: Stored, *, dry_run: bool) -> Stored:
        """Store the document; a write that changes nothing keeps the version."""
        metadata = part(document, "metadata")
        metadata["resourceVersion"] = str(before.version)
        if document == before.document:
            return before
        if target.kind.has_generation and document.get("spec") != before.document.get("spec"):
            metadata["generation"] = meta.as_int(metadata.get("generation")) + 1
        return self._put(target, document, before=before, dry_run=dry_run)

    def _put(
        self,
        target: Target,
        document: Json,
        *,
        dry_run: bool,
        before: Stored | None = None,
    ) -> Stored:
        version = self.store.next_version()
        metadata = part(document, "metadata")
        if dry_run:
            version = before.version if before else 0
        else:
            metadata["resourceVersion"] = str(version)
        # The schema puts the fields in order again.
        document["metadata"] = self.schema.stored("ObjectMeta", metadata)
        stored = Stored(target.namespace, target.name, version, document)
        if dry_run:
            return stored
        if before is not None and meta.can_be_removed(metadata):
            self.store.remove(target.kind.storage, stored)
            return stored
        return self.store.put(target.kind.storage, stored)


def _at(document: Mapping[str, object], path: str) -> object:
    found: object = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
