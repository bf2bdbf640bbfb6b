"""This node's ResourceSlices at the API server."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from tensorfusion_dra.cluster import api
from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.ports.cluster import MissingRightError

log = structlog.get_logger()

_FORBIDDEN: Final = 403
_RIGHT: Final = "get, list, watch, create, update and delete on resourceslices"


class Slices:
    """Reader and writer of this node's ResourceSlices; implements ports.cluster.Slices."""

    def __init__(self, resource_api: ResourceApi, *, node_name: str) -> None:
        self._resource_api = resource_api
        self._node_name = node_name
        self._throttle = LogThrottle()
        # The Node authorizer and the admission policy restrict a node to its own slices.
        self.selector = f"spec.driver={names.DRIVER},spec.nodeName={node_name}"

    def fetch(self) -> Sequence[Slice]:
        path = self._resource_api.slices()
        listed = self._call("GET", path, query={"fieldSelector": self.selector})
        found = api.items(listed, f"GET {path}")
        of_node = [_checked(item) for item in found if self.is_of_node(item)]
        if len(of_node) < len(found):
            self._log_foreign_slices(len(found) - len(of_node))
        return of_node

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
        try:
            self._call(
                "DELETE",
                self._resource_api.slices(metadata["name"]),
                body={"preconditions": preconditions},
            )
        except StatusError as error:
            if error.status != 404:
                raise

    def watch(
        self,
        *,
        on_change: Callable[[], None],
        on_return: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> Watch:
        """Return a watch of this node's slices, for a reader that lists them at every change.

        Args:
            on_change: Called when a slice was added, changed or deleted.
            on_return: Called when the watch begins, or begins again: anything may have happened
                since, and the server may be another one.
            clock: In seconds.
        """
        return Watch(
            self._resource_api.api,
            self._resource_api.slices,
            selector=self.selector,
            on_list=lambda _items, _version: on_return(),
            on_event=lambda _type, item: on_change() if self.is_of_node(item) else None,
            on_resume=on_return,
            clock=clock,
        )

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
        stored = self._call(method, path, query=query, body=body)
        if not isinstance(stored.get("spec"), dict):
            raise RetryableError(f"{method} {path}: found no ResourceSlice in the answer")
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
