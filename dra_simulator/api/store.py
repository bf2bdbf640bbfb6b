"""Objects of the simulated API server, their resourceVersions and the history of changes."""

import json
import time
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Condition
from typing import Final, Literal

from dra_simulator.api import failures

Json = dict[str, object]
Change = Literal["ADDED", "MODIFIED", "DELETED"]

FIRST_VERSION: Final = 1


@dataclass(frozen=True)
class Stored:
    """One version of one object; neither it nor its document ever changes.

    Attributes:
        document: Without kind and apiVersion, which depend on the request.
    """

    namespace: str
    name: str
    version: int
    document: Json

    def at_version(self, version: int) -> "Stored":
        """Return the same object with another resourceVersion."""
        metadata = self.document["metadata"]
        assert isinstance(metadata, dict)
        document = {**self.document, "metadata": {**metadata, "resourceVersion": str(version)}}
        return replace(self, version=version, document=document)

    @cached_property
    def fields_text(self) -> str:
        """Document as JSON without its opening brace."""
        return json.dumps(self.document, separators=(",", ":"), ensure_ascii=False)[1:]


@dataclass(frozen=True, slots=True)
class Event:
    """One change.

    Attributes:
        before: Object before the change; None if it did not exist.
    """

    version: int
    change: Change
    stored: Stored
    before: Stored | None


@dataclass(slots=True)
class _Shelf:
    """All objects of one resource, and their latest changes in order.

    Attributes:
        forgotten: Version up to which the history has lost the changes.
    """

    objects: dict[tuple[str, str], Stored] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    forgotten: int = 0


class Store:
    """All objects, by resource, namespace and name.

    One lock guards everything. A change and the reads it depends on share one `with store.lock`.

    Attributes:
        closed: Waiting for changes has ended.
    """

    def __init__(self, *, history: int) -> None:
        self.lock: Final = Condition()
        self._limit: Final = history
        self._version = FIRST_VERSION
        self._shelves: dict[str, _Shelf] = defaultdict(_Shelf)
        self.closed = False

    @property
    def version(self) -> int:
        """The resourceVersion of the latest change."""
        with self.lock:
            return self._version

    def get(self, resource: str, namespace: str, name: str) -> Stored | None:
        """Return the object, or None."""
        with self.lock:
            return self._shelves[resource].objects.get((namespace, name))

    def listed(self, resource: str, namespace: str | None) -> tuple[list[Stored], int]:
        """Return the objects of one namespace (None: of all), ordered by name, and the version."""
        with self.lock:
            found = [
                stored
                for key, stored in sorted(self._shelves[resource].objects.items())
                if namespace is None or key[0] == namespace
            ]
            return found, self._version

    def next_version(self) -> int:
        """Return the version for the next put or remove; to be called under the lock."""
        return self._version + 1

    def put(self, resource: str, stored: Stored) -> Stored:
        """Store an object and return it; its version must be next_version()."""
        with self.lock:
            shelf = self._shelves[resource]
            key = (stored.namespace, stored.name)
            before = shelf.objects.get(key)
            shelf.objects[key] = stored
            self._record(
                shelf, Event(stored.version, "MODIFIED" if before else "ADDED", stored, before)
            )
            return stored

    def remove(self, resource: str, stored: Stored) -> None:
        """Remove an object; stored is its last state, with next_version()."""
        with self.lock:
            shelf = self._shelves[resource]
            before = shelf.objects.pop((stored.namespace, stored.name))
            self._record(shelf, Event(stored.version, "DELETED", stored, before))

    def remove_namespace(self, namespace: str) -> None:
        """Remove everything in a namespace."""
        with self.lock:
            for resource, shelf in self._shelves.items():
                for stored in list(shelf.objects.values()):
                    if stored.namespace == namespace:
                        self.remove(resource, stored.at_version(self.next_version()))

    def _record(self, shelf: _Shelf, event: Event) -> None:
        self._version = event.version
        shelf.history.append(event)
        surplus = len(shelf.history) - self._limit
        if surplus > 0:
            shelf.forgotten = shelf.history[surplus - 1].version
            del shelf.history[:surplus]
        self.lock.notify_all()

    def forget(self, resource: str) -> None:
        """Drop the history of a resource, as after a compaction."""
        with self.lock:
            shelf = self._shelves[resource]
            shelf.forgotten = self._version
            shelf.history.clear()
            self.lock.notify_all()

    def events_after(
        self, resource: str, version: int, *, wait_seconds: float
    ) -> tuple[list[Event], int]:
        """Return the changes since a version, and the current version; wait if there is no change.

        Raises:
            ApiError: 410 if the history does not reach back to the version.
        """
        until = time.monotonic() + wait_seconds
        with self.lock:
            shelf = self._shelves[resource]
            while True:
                if version < shelf.forgotten:
                    raise failures.expired(version, shelf.forgotten)
                start = bisect_right(shelf.history, version, key=lambda event: event.version)
                left = until - time.monotonic()
                if start < len(shelf.history) or left <= 0 or self.closed:
                    return shelf.history[start:], self._version
                self.lock.wait(left)

    def close(self) -> None:
        """End all waits for changes at once."""
        with self.lock:
            self.closed = True
            self.lock.notify_all()
