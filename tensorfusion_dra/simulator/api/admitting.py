"""Writes go through the admission webhooks first; nothing is locked while those are asked."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.simulator.api import failures, kinds
from tensorfusion_dra.simulator.api.registry import Change, Registry, WriteOptions
from tensorfusion_dra.simulator.api.store import Stored
from tensorfusion_dra.simulator.api.strategy import Json, part
from tensorfusion_dra.simulator.api.target import Target
from tensorfusion_dra.simulator.api.webhook_matching import Attempt
from tensorfusion_dra.simulator.api.webhooks import Webhooks

_TRIES: Final = 5
"""As often as the API server applies a patch to an object that changes meanwhile."""


@dataclass(frozen=True, slots=True)
class Write:
    """One create, update, patch or apply.

    Attributes:
        version: Of the API, as the request has it.
        warnings: For the client; those of the webhooks are added.
    """

    target: Target
    version: str
    options: WriteOptions
    warnings: list[str]


class _MovedError(DriverError):
    """The object is another one than the webhooks saw."""


@dataclass(frozen=True, slots=True)
class Admitting:
    """The registry behind the webhooks. Otherwise than on a real server, an apply to an object
    that is there already passes them by.
    """

    registry: Registry
    webhooks: Webhooks

    def create(self, write: Write, decoded: Json) -> Stored:
        """See Registry."""
        admitted = self._admitted(write, decoded, None)
        return self.registry.create(write.target, admitted, write.options)

    def apply(self, write: Write, wanted: Json) -> tuple[Stored, bool]:
        """See Registry."""
        if self._find(write) is None:
            wanted = self._admitted(write, wanted, None)
        return self.registry.apply(write.target, wanted, write.options)

    def change(self, write: Write, change: Change) -> Stored:
        """See Registry."""
        for _ in range(_TRIES):
            before = self._find(write)
            if before is None or not self._is_seen(write):
                return self.registry.change(write.target, change, write.options)
            admitted = self._admitted(write, change(before), before)
            version = before.version

            def pinned(now: Stored, admitted: Json = admitted, version: int = version) -> Json:
                if now.version != version:
                    raise _MovedError
                return admitted

            try:
                return self.registry.change(write.target, pinned, write.options)
            except _MovedError:
                continue
        kind = write.target.kind
        raise failures.modified(kind.plural, kind.group, write.target.name)

    def _admitted(self, write: Write, decoded: Json, old: Stored | None) -> Json:
        """The object as the webhooks want it."""
        if not self._is_seen(write):
            return decoded
        kind = write.target.kind
        marks: Json = {
            "kind": kind.kind,
            "apiVersion": kinds.api_version(kind.group, write.version),
        }
        metadata = dict(part(decoded, "metadata"))
        if kind.namespaced:
            metadata["namespace"] = write.target.namespace
        attempt = Attempt(
            target=write.target,
            version=write.version,
            operation="UPDATE" if old else "CREATE",
            document={**marks, **decoded, "metadata": metadata},
            old={**marks, **old.document} if old else None,
            dry_run=write.options.dry_run,
        )
        document, warnings = self.webhooks.admitted(attempt)
        write.warnings.extend(warnings)
        return document

    def _is_seen(self, write: Write) -> bool:
        return not write.target.subresource and self.webhooks.are_there()

    def _find(self, write: Write) -> Stored | None:
        target = write.target
        return self.registry.store.get(target.kind.storage, target.namespace, target.name)
