"""Deletion of objects, as in the API server."""

import copy
from dataclasses import dataclass, replace
from typing import Final

from dra_simulator.api import failures
from dra_simulator.api.metadata import mark
from dra_simulator.api.registry import Registry
from dra_simulator.api.selectors import Selector
from dra_simulator.api.store import Stored
from dra_simulator.api.strategy import part
from dra_simulator.api.target import Target


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


class Deletion:
    """All deletes; each is atomic.

    A namespace is removed at once with everything in it, because there is no namespace controller.
    Dependents of an object remain, because there is no garbage collector.
    """

    def __init__(self, writer: Registry) -> None:
        self._store: Final = writer.store
        self._strategies: Final = writer.strategies

    def delete(self, target: Target, options: DeleteOptions) -> tuple[Stored, bool]:
        """Delete an object; return its last state, and True if it is gone.

        An object with finalizers and a pod on a node only get a deletionTimestamp.

        Raises:
            ApiError: The object does not exist or does not meet a precondition.
        """
        kind = target.kind
        with self._store.lock:
            before = self._store.get(kind.storage, target.namespace, target.name)
            if before is None:
                raise target.missing()
            _check(target, options, before)
            document = copy.deepcopy(before.document)
            metadata = part(document, "metadata")
            grace = self._strategies(kind).grace_seconds(document, options.grace_seconds)
            stays = bool(grace) or bool(metadata.get("finalizers"))
            if options.dry_run:
                return before, not stays
            if stays or grace is not None:
                marked = mark(metadata, grace or 0, counts=kind.has_generation)
                if stays and not marked:
                    return before, False
            version = self._store.next_version()
            metadata["resourceVersion"] = str(version)
            stored = replace(before, version=version, document=document)
            if stays:
                return self._store.put(kind.storage, stored), False
            self._store.remove(kind.storage, stored)
            if kind.plural == "namespaces":
                self._store.remove_namespace(target.name)
            return stored, True

    def delete_collection(
        self, target: Target, selector: Selector, options: DeleteOptions
    ) -> list[Stored]:
        """Delete the selected objects; return their last states."""
        with self._store.lock:
            found, _ = self._store.listed(target.kind.storage, target.namespace or None)
            chosen = [stored for stored in found if selector.chooses(stored.document)]
            return [
                self.delete(replace(target, namespace=stored.namespace, name=stored.name), options)[
                    0
                ]
                for stored in chosen
            ]


def _check(target: Target, options: DeleteOptions, before: Stored) -> None:
    kind, uid = target.kind, part(before.document, "metadata")["uid"]
    if options.uid is not None and options.uid != uid:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record"
            f" ({uid}). The object might have been deleted and then recreated"
        )
        raise failures.conflict(kind.kind, kind.group, target.name, why)
    if options.version is not None and options.version != str(before.version):
        why = (
            f"the ResourceVersion in the precondition ({options.version}) does not match the"
            f" ResourceVersion in record ({before.version}). The object might have been modified"
        )
        raise failures.conflict(kind.kind, kind.group, target.name, why)
