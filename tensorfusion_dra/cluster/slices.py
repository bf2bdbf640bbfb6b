"""This node's ResourceSlices at the API server: known from a watch, and written.

With a watch, fetch() sends no request as a rule: it returns what the watch and the own writes have
shown. That may be older than what is stored, but nothing is overwritten because of it. Every write
names the version that it replaces, and the server refuses it if that is not the latest one. Then
the next fetch() lists the slices. Without a watch, every fetch() does.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.cluster import api
from tensorfusion_dra.cluster.api import ResourceApi, RetriedReads, StatusError
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import MissingRightError
from tensorfusion_dra.runtime.log_throttle import LogThrottle

log = structlog.get_logger()

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_SERVER_ERRORS: Final = 500
_RIGHT: Final = "get, list, watch, create, update and delete on resourceslices"


class Slices:
    """Reader and writer of this node's ResourceSlices; implements ports.Slices."""

    def __init__(self, resource_api: ResourceApi, *, node_name: str) -> None:
        self._resource_api = resource_api
        self._node_name = node_name
        self._throttle = LogThrottle()
        # Guards _known and _failure. Held during writes, so that the event of a write is compared
        # with its answer, and not taken for another writer's.
        self._guard = Lock()
        self._known = KnownSlices()
        self._is_watched = False
        self._failure: RetryableError | None = None  # why they could not be listed so far
        self._must_list = Event()  # before the next fetch() returns
        self._must_list.set()
        # The Node authorizer and the admission policy restrict a node to its own slices.
        self.selector = f"spec.driver={names.DRIVER},spec.nodeName={node_name}"

    def fetch(self) -> Sequence[Slice] | None:
        with self._guard:
            if self._must_list.is_set():
                self._known.note_list(*self._listed())
                if self._is_watched:
                    self._must_list.clear()
            found = self._known.all()
            if found is None and self._failure is not None:
                raise self._failure
            return found

    def is_of_node(self, item: Slice) -> bool:
        """Return True if the slice belongs to this driver and this node."""
        return slices.is_of_node(item, self._node_name)

    def create(self, item: Slice, *, trial: bool = False) -> Slice:
        return self._write("POST", self._resource_api.slices(), item, trial=trial)

    def replace(self, item: Slice, *, trial: bool = False) -> Slice:
        """Replace the stored slice; see ports.Slices.

        The slice's resourceVersion makes the server answer with a conflict if another writer has
        changed it since it was read.
        """
        path = self._resource_api.slices(item["metadata"]["name"])
        return self._write("PUT", path, item, trial=trial)

    def delete(self, item: Slice) -> None:
        metadata = item["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        path = self._resource_api.slices(metadata["name"])
        with self._writing():
            try:
                self._call("DELETE", path, body={"preconditions": preconditions})
            except StatusError as error:
                if error.status != _NOT_FOUND:
                    raise
            self._known.note_deleted(item)

    def watch(
        self,
        *,
        on_change: Callable[[], None],
        on_return: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> Watch:
        """Return a watch of this node's slices, which keeps what fetch() returns up to date.

        Args:
            on_change: Called when another writer has added, changed or deleted a slice, or when it
                turns out that the slices cannot be listed.
            on_return: Called when the watch begins, or begins again, since the server may be
                another one.
            clock: In seconds.
        """
        self._is_watched = True
        self._must_list.clear()

        def on_list(items: Sequence[Slice], version: str) -> None:
            if self._note_list(items, version):
                on_change()
            on_return()

        def on_event(event: str, item: Slice) -> None:
            if self.is_of_node(item) and self._note_event(event, item):
                on_change()

        def on_failure(error: RetryableError) -> None:
            if self._note_failure(error):
                on_change()

        return Watch(
            self._resource_api.api,
            self._resource_api.slices,
            selector=self.selector,
            on_list=on_list,
            on_event=on_event,
            on_resume=on_return,
            on_failure=on_failure,
            clock=clock,
        )

    def _listed(self) -> tuple[Sequence[Slice], str]:
        """List the slices; return them and the version of the list."""
        path = self._resource_api.slices()
        listed = self._call("GET", path, query={"fieldSelector": self.selector})
        found = self._of_node(api.items(listed, f"GET {path}"))
        return found, str(api.metadata(listed).get("resourceVersion"))

    def _of_node(self, found: Sequence[Slice]) -> Sequence[Slice]:
        of_node = [_checked(item) for item in found if self.is_of_node(item)]
        if len(of_node) < len(found):
            self._log_foreign_slices(len(found) - len(of_node))
        return of_node

    def _note_list(self, items: Sequence[Slice], version: str) -> bool:
        of_node = self._of_node(items)
        with self._guard:
            return self._known.note_list(of_node, version)

    def _note_event(self, event: str, item: Slice) -> bool:
        try:
            checked = _checked(item)
        except RetryableError:
            self._must_list.set()  # what cannot be read as an event is found in the next list
            return True
        with self._guard:
            return self._known.note_event(event, checked)

    def _note_failure(self, error: RetryableError) -> bool:
        """Remember why the slices cannot be listed; return True if they never could."""
        if isinstance(error, StatusError) and error.status == _FORBIDDEN:
            error = MissingRightError(str(error), _RIGHT)
        with self._guard:
            self._failure = error
            return self._known.all() is None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold _guard; after an error that leaves doubts about the stored slices, list them again.

        That is a conflict, or an error after which the write may have been carried out all the
        same.
        """
        with self._guard:
            try:
                yield
            except RetryableError as error:
                if not _was_refused(error):
                    self._must_list.set()
                raise

    def _log_foreign_slices(self, number: int) -> None:
        """Log that the field selector had no effect, as behind a proxy that drops it."""
        if self._throttle.is_new("foreign slices"):
            log.warning(
                "foreign_slices_ignored",
                slices=number,
                error=f"resourceslices: found slices that do not match {self.selector}, expected "
                "the API server to select by these fields",
            )

    def _write(self, method: str, path: str, item: Slice, *, trial: bool) -> Slice:
        query = {"fieldValidation": "Strict", "fieldManager": names.FIELD_MANAGER}
        if trial:
            query["dryRun"] = "All"
        body: Mapping[str, Any] = {
            **item,
            "apiVersion": self._resource_api.api_version(),
            "kind": "ResourceSlice",
        }
        with self._writing():
            stored = self._call(method, path, query=query, body=body)
            if not isinstance(stored.get("spec"), dict):
                raise RetryableError(f"{method} {path}: found no ResourceSlice in the answer")
            if not trial:
                self._known.note_stored(_checked(stored))
        return stored

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        try:
            return self._resource_api.api.call(method, path, query=query, body=body)
        except StatusError as error:
            if error.status == _FORBIDDEN:
                raise MissingRightError(str(error), _RIGHT) from error
            raise


def _was_refused(error: RetryableError) -> bool:
    """Return True if a write was surely not carried out, and not because of a conflict."""
    if isinstance(error, StatusError):
        is_conflict = error.status in (_NOT_FOUND, _CONFLICT)
        return error.status < _SERVER_ERRORS and not is_conflict
    return isinstance(error, MissingRightError)


def _checked(item: Slice) -> Slice:
    """Return the slice unchanged if it has the fields that planning needs.

    A broken proxy between the driver and the API server may have altered it.

    Raises:
        RetryableError: It lacks a field that every stored ResourceSlice has.
    """
    try:
        metadata, pool = item["metadata"], item["spec"]["pool"]
        known = (metadata["name"], metadata["uid"], metadata["resourceVersion"], pool["name"])
        usable = all(known) and isinstance(item["spec"].get("devices") or [], list)
        int(pool["generation"])
    except (KeyError, TypeError, ValueError, AttributeError):
        usable = False
    if not usable:
        raise RetryableError("resourceslices: found one without name, UID, version or pool")
    return item


class KnownSlices:
    """The slices of one node as last seen: from lists, watch events and answers to own writes.

    Use it from one thread at a time. Events and lists may be older than the answer to a write that
    this process has made since. So of two states of one object the one with the larger
    resourceVersion is the later one, as Kubernetes' own clients compare them. An object that this
    process has deleted never comes back, because another one of its name has another UID.

    Example: another writer changes a slice (version 7). The publisher does not know yet, is
    refused, lists the slices and replaces this one (version 9). Now the events of versions 7 and 9
    arrive. Both are known, so nothing is read or written because of them.
    """

    def __init__(self) -> None:
        self._by_name: Mapping[str, Slice] | None = None
        self._deleted: set[str] = set()  # UIDs of own deletions that no list has confirmed

    def all(self) -> Sequence[Slice] | None:
        """Return the slices; None if they were never listed."""
        return None if self._by_name is None else list(self._by_name.values())

    def note_list(self, items: Sequence[Slice], version: str) -> bool:
        """Take in a list; return True if another writer has changed something since the last one.

        Args:
            version: The resourceVersion of the list. Own writes that are later stay.
        """
        listed = {_name(item): item for item in items if _uid(item) not in self._deleted}
        self._deleted.intersection_update(map(_uid, items))
        before, self._by_name = self._by_name, listed
        if before is None:
            return bool(listed)
        for name, known in before.items():
            found = _version(listed[name]) if name in listed else version
            if _is_later(_version(known), found):
                listed[name] = known
        return _states(before.values()) != _states(listed.values())

    def note_event(self, event: str, item: Slice) -> bool:
        """Take in an event of the watch; return True if it brings news."""
        slices = dict(self._by_name or {})
        known = slices.get(_name(item))
        if event == "DELETED":
            if known is None or _uid(known) != _uid(item):
                return False
            del slices[_name(item)]
        elif _uid(item) in self._deleted or not _is_news(item, known):
            return False
        else:
            slices[_name(item)] = item
        self._by_name = slices
        return True

    def note_stored(self, item: Slice) -> None:
        """Take in the answer to an own write."""
        if self._by_name is not None and _is_news(item, self._by_name.get(_name(item))):
            self._by_name = {**self._by_name, _name(item): item}

    def note_deleted(self, item: Slice) -> None:
        """Take in the answer to an own deletion."""
        self._deleted.add(_uid(item))
        if self._by_name is not None:
            slices = self._by_name.items()
            self._by_name = {name: known for name, known in slices if _uid(known) != _uid(item)}


def _is_news(item: Slice, known: Slice | None) -> bool:
    return known is None or _is_later(_version(item), _version(known))


def _is_later(version: str, than: str) -> bool:
    """Return True if a resourceVersion is later than another, or if they cannot be compared."""
    if not (version.isdecimal() and than.isdecimal()):
        return version != than
    return int(version) > int(than)


def _states(slices: Iterable[Slice]) -> set[tuple[str, str]]:
    return {(_uid(item), _version(item)) for item in slices}


def _name(item: Slice) -> str:
    return str(item["metadata"]["name"])


def _uid(item: Slice) -> str:
    return str(item["metadata"]["uid"])


def _version(item: Slice) -> str:
    return str(item["metadata"]["resourceVersion"])


class PublishedSlices:
    """Reader of published ResourceSlices; implements webhook.ports.PublishedSlices."""

    def __init__(self, resource_api: ResourceApi) -> None:
        self._resource_api = resource_api
        self._reads = RetriedReads()

    def published(self, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        return self._reads.with_retries(
            "ResourceSlices", self._list_once, wait_seconds=wait_seconds
        )

    def _list_once(self, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        listed = self._resource_api.api.call(
            "GET",
            self._resource_api.slices(),
            query={"fieldSelector": f"spec.driver={names.DRIVER}"},
            wait_seconds=wait_seconds,
        )
        return listed.get("items") or []
