"""Admission of writes by webhooks; the store is not locked during the calls."""

from dataclasses import dataclass
from typing import Final

from dra_simulator.api import failures, kinds
from dra_simulator.api.registry import Change, Registry, WriteOptions
from dra_simulator.api.store import Stored
from dra_simulator.api.strategy import Json, part
from dra_simulator.api.target import Target
from dra_simulator.api.webhook_matching import Attempt
from dra_simulator.api.webhooks import Webhooks
from tensorfusion_dra.core.errors import DriverError

_TRIES: Final = 5
"""Number of attempts that the API server makes to patch an object that changes meanwhile."""


@dataclass(frozen=True, slots=True)
class Write:
    """One create, update, patch or apply.

    Attributes:
        version: API version of the request.
        warnings: Warnings for the client; those of the webhooks are appended.
    """

    target: Target
    version: str
    options: WriteOptions
    warnings: list[str]


class _ChangedError(DriverError):
    """The object changed after the webhooks saw it."""


@dataclass(frozen=True, slots=True)
class Admitting:
    """The registry behind the webhooks.

    Unlike on a real server, an apply to an existing object does not call the webhooks.
    """

    registry: Registry
    webhooks: Webhooks

    def create(self, write: Write, decoded: Json) -> Stored:
        """Create an object after admission, like Registry.create."""
        admitted = self._admitted(write, decoded, None)
        return self.registry.create(write.target, admitted, write.options)

    def apply(self, write: Write, wanted: Json) -> tuple[Stored, bool]:
        """Apply an object, after admission if it is new, like Registry.apply."""
        if self._find(write) is None:
            wanted = self._admitted(write, wanted, None)
        return self.registry.apply(write.target, wanted, write.options)

    def change(self, write: Write, change: Change) -> Stored:
        """Update or patch an object after admission, like Registry.change.

        If the object changes during the calls, the webhooks are called again for its new state.
        """
        for _ in range(_TRIES):
            before = self._find(write)
            if before is None or not self._needs_admission(write):
                return self.registry.change(write.target, change, write.options)
            admitted = self._admitted(write, change(before), before)
            version = before.version

            def pinned(now: Stored, admitted: Json = admitted, version: int = version) -> Json:
                if now.version != version:
                    raise _ChangedError
                return admitted

            try:
                return self.registry.change(write.target, pinned, write.options)
            except _ChangedError:
                continue
        kind = write.target.kind
        raise failures.modified(kind.plural, kind.group, write.target.name)

    def _admitted(self, write: Write, decoded: Json, old: Stored | None) -> Json:
        """Return the object as the webhooks changed it."""
        if not self._needs_admission(write):
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

    def _needs_admission(self, write: Write) -> bool:
        return not write.target.subresource and self.webhooks.are_configured()

    def _find(self, write: Write) -> Stored | None:
        target = write.target
        return self.registry.store.get(target.kind.storage, target.namespace, target.name)
