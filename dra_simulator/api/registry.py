"""Creation and change of objects, as in the generic registry of the API server."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_simulator.api import failures, meta_rules, ownership
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind
from dra_simulator.api.metadata import as_int, can_be_removed, fill, keep
from dra_simulator.api.ownership import Manager, Owners
from dra_simulator.api.schema import Schema
from dra_simulator.api.store import Store, Stored
from dra_simulator.api.strategy import Json, Strategy, part
from dra_simulator.api.target import Target
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, invalid

Change = Callable[[Stored], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The parameters of a write.

    Attributes:
        manager: Field manager of the write: fieldManager, or the user agent up to its first slash.
        force: An apply takes over fields that other managers own.
    """

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False


class Registry:
    """All writes except deletes; each is atomic."""

    def __init__(
        self, store: Store, schema: Schema, strategies: Callable[[Kind], Strategy]
    ) -> None:
        self.store: Final = store
        self.schema: Final = schema
        self.strategies: Final = strategies

    def create(self, target: Target, decoded: Json, options: WriteOptions) -> Stored:
        """Create an object.

        Raises:
            ApiError: The namespace does not exist, the name is taken or a field breaks a rule.
        """
        manager = Manager(options.manager, applies=False)
        return self._create(target, decoded, options, manager=manager)

    def _create(
        self, target: Target, decoded: Json, options: WriteOptions, *, manager: Manager
    ) -> Stored:
        kind = target.kind
        document = copy.deepcopy(decoded)
        metadata = document.setdefault("metadata", {})
        assert isinstance(metadata, dict)
        target.check_namespace(metadata)
        if metadata.pop("resourceVersion", ""):
            text = "resourceVersion should not be set on objects to be created"
            raise ApiError(500, "", text)
        fill(metadata, target.namespace)
        target = replace(target, name=str(metadata.get("name", "")))
        with self.store.lock:
            self._require_namespace(target)
            strategy = self.strategies(kind)
            strategy.prepare(document, None)
            errors = [*meta_rules.errors(document, kind), *strategy.errors(document, None)]
            if errors:
                raise target.invalid(errors)
            if self.store.get(kind.storage, target.namespace, target.name):
                raise failures.already_exists(kind.plural, kind.group, target.name)
            if kind.has_generation:
                metadata["generation"] = 1
            document = self.schema.stored(kind.struct, document)
            paths = ownership.leaves(self.schema, kind.struct, document)
            owners = ownership.after_update({}, {}, paths, manager)
            return self._put(target, document, owners, options)

    def _require_namespace(self, target: Target) -> None:
        if not target.namespace:
            return
        found = self.store.get("namespaces", "", target.namespace)
        if found is None:
            raise failures.not_found("namespaces", "", target.namespace)

    def change(self, target: Target, changed: Change, options: WriteOptions) -> Stored:
        """Update or patch an object; changed() returns its new document.

        Raises:
            ApiError: The object does not exist, it changed meanwhile or a field breaks a rule.
        """
        with self.store.lock:
            before = self._existing(target)
            document = self._checked(target, copy.deepcopy(changed(before)), before)
            return self._replace(target, document, before, options)

    def overwrite(self, target: Target, changed: Change, options: WriteOptions) -> Stored:
        """Change an object on behalf of the server itself, without checking any rule.

        Raises:
            ApiError: The object does not exist, or changed() raises it.
        """
        with self.store.lock:
            before = self._existing(target)
            document = self.schema.stored(target.kind.struct, changed(before))
            return self._put(target, document, before.owners, options, before=before)

    def apply(self, target: Target, wanted: Json, options: WriteOptions) -> tuple[Stored, bool]:
        """Apply an object server-side; return it, and True if it is new.

        Raises:
            ApiError: Another manager owns a field with another value, or as for change().
        """
        kind = target.kind
        manager = Manager(options.manager, applies=True, subresource=target.subresource)
        with self.store.lock:
            before = self.store.get(kind.storage, target.namespace, target.name)
            if before is None and not target.subresource:
                metadata = {**part(wanted, "metadata"), "name": target.name}
                fresh = {**wanted, "metadata": metadata}
                return self._create(target, fresh, options, manager=manager), True
            if before is None:
                raise target.missing()
            target.check_identity(part(wanted, "metadata"), before)
            done = ownership.applied(
                self.schema,
                kind.struct,
                before.document,
                before.owners,
                wanted=_own_part(wanted, target, self.strategies(kind)),
                by=manager,
            )
            if done.conflicts and not options.force:
                raise failures.apply_conflict(
                    [(ownership.path_text(path), str(other)) for path, other in done.conflicts]
                )
            document = self._checked(target, done.document, before)
            return self._replace(target, document, before, options, owners=done.owners), False

    def _existing(self, target: Target) -> Stored:
        found = self.store.get(target.kind.storage, target.namespace, target.name)
        if found is None:
            raise target.missing()
        return found

    def _checked(self, target: Target, document: Json, before: Stored) -> Json:
        """Return the document as it would be stored.

        Raises:
            ApiError: The change breaks a rule.
        """
        kind, old = target.kind, before.document
        strategy = self.strategies(kind)
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
            keep(metadata, old_metadata)
            document["metadata"] = {"name": target.name, **metadata}
            strategy.prepare(document, old)
            errors = [
                *meta_rules.errors(document, kind),
                *meta_rules.finalizer_errors(metadata, old_metadata),
                *strategy.errors(document, old),
            ]
            document = self.schema.stored(kind.struct, document)
            errors += self._immutable_errors(kind, strategy, document, old)
        if errors:
            raise target.invalid(errors)
        return document

    def _immutable_errors(
        self, kind: Kind, strategy: Strategy, document: Json, old: Json
    ) -> list[FieldError]:
        changed = [path for path in strategy.immutable if _at(document, path) != _at(old, path)]
        if not changed:
            return []
        new, before = (self.schema.comparable(kind.struct, found) for found in (document, old))
        return [
            invalid(path, _at(document, path), "field is immutable")
            for path in changed
            if _at(new, path) != _at(before, path)
        ]

    def _replace(
        self,
        target: Target,
        document: Json,
        before: Stored,
        options: WriteOptions,
        *,
        owners: Owners | None = None,
    ) -> Stored:
        """Store the document; a write that changes nothing keeps the version."""
        kind, old = target.kind, before.document
        metadata = part(document, "metadata")
        metadata["resourceVersion"] = str(before.version)
        if owners is None:
            owners = ownership.after_update(
                before.owners,
                ownership.leaves(self.schema, kind.struct, old),
                ownership.leaves(self.schema, kind.struct, document),
                Manager(options.manager, applies=False, subresource=target.subresource),
            )
        if document == old and owners == before.owners:
            return before
        spec, old_spec = ({"spec": found.get("spec")} for found in (document, old))
        if kind.has_generation and not self.schema.same(kind.struct, spec, old_spec):
            metadata["generation"] = as_int(metadata.get("generation")) + 1
        return self._put(target, document, owners, options, before=before)

    def _put(
        self,
        target: Target,
        document: Json,
        owners: Owners,
        options: WriteOptions,
        *,
        before: Stored | None = None,
    ) -> Stored:
        version = self.store.next_version()
        metadata = part(document, "metadata")
        if options.dry_run:
            version = before.version if before else 0
        else:
            metadata["resourceVersion"] = str(version)
        # The schema puts the fields in order again.
        document["metadata"] = self.schema.stored("ObjectMeta", metadata)
        stored = Stored(target.namespace, target.name, version, document, owners)
        if options.dry_run:
            return stored
        if before is not None and can_be_removed(metadata):
            self.store.remove(target.kind.storage, stored)
            return stored
        return self.store.put(target.kind.storage, stored)


def _own_part(wanted: Json, target: Target, strategy: Strategy) -> Json:
    """Return the part that an apply may set: a subresource, or everything but the status."""
    if target.subresource:
        return {target.subresource: part(wanted, target.subresource)}
    hidden = {"status"} if strategy.has_status else set()
    return {name: value for name, value in wanted.items() if name not in hidden}


def _at(document: Mapping[str, object], path: str) -> object:
    found: object = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
