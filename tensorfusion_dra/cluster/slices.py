"""This node's ResourceSlices at the API server: known from a watch, and written.

With a watch, fetch() sends no request as a rule: it returns what the watch and the own writes have
shown. That may be older than what is stored, but nothing is overwritten because of it. Every write
names the version that it replaces, and the server refuses it if that is not the latest one. Then
the next fetch() lists the slices. Without a watch, every fetch() does.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any, Final

import structlog

from tensorfusion_dra.cluster import api
from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.cluster.known_slices import KnownSlices
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.cluster import MissingRightError
from tensorfusion_dra.runtime.log_throttle import LogThrottle

log = structlog.get_logger()

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_SERVER_ERRORS: Final = 500
_RIGHT: Final = "get, list, watch, create, update and delete on resourceslices"


class Slices:
    """Reader and writer of this node's ResourceSlices; implements ports.cluster.Slices."""

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
        """Replace the stored slice; see ports.cluster.Slices.

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
