"""This node's ResourceSlices at the API server: known from a watch, and written.

With a watch, fetch() as a rule sends no request: it returns the last list, with the answers to own
writes since. The slices are listed again after a change that another writer made, and after a write
whose result is unknown. What fetch() returns may be outdated, but nothing is overwritten because of
it: every write names the version that it replaces, and the server refuses it if that is not the
latest one.

Example: a card becomes unhealthy. Its slice is replaced and stored with version 7. The event of
version 7 arrives and is known already, so nothing is read because of it. Then somebody edits the
slice. The event has version 8, so the next fetch() lists the slices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from tensorfusion_dra.cluster.api import RESOURCE_VERSION, Api, resource_path
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import other_users, slices
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import MissingPermissionError, RetryableError, StatusError
from tensorfusion_dra.core.kubernetes.projection import Projection, projected

_SLICES: Final = resource_path("resourceslices")
_PERMISSION: Final = "get, list, watch, create, update and delete resourceslices"

_CHECKED: Final[Projection] = {
    "metadata!": {"name!": str, "uid!": str, "resourceVersion!": str},
    "spec!": {"driver!": str, "nodeName": str, "pool!": {"name!": str}, "devices": [dict]},
}


def _kept(item: Any) -> Slice:
    """Return a slice of this driver as it is, and of another one what shows its cards."""
    is_own = projected(item, _CHECKED)["spec"]["driver"] == names.DRIVER
    found: Slice = item if is_own else projected(item, other_users.SLICE)
    return found


class ApiSlices:
    """Reader and writer of this node's ResourceSlices; implements the port Slices."""

    def __init__(self, server: Api, *, node_name: str) -> None:
        self._api = server
        self._node_name = node_name
        # Guards all below. Held during writes, so that the event of a write is compared with its
        # answer, and not taken for another writer's.
        self._guard = Lock()
        self._known: dict[str, Slice] = {}  # by name
        self._must_list = True  # before the next fetch() returns
        self._is_watched = False
        # The Node authorizer and the admission policy restrict a node to its own slices.
        self._of_node = f"spec.nodeName={node_name}"
        self._query = {"fieldSelector": f"spec.driver={names.DRIVER},{self._of_node}"}

    def fetch(self) -> Sequence[Slice]:
        with self._guard:
            if self._must_list:
                listed = self._api.listed(_SLICES, _kept, query=self._query, permission=_PERMISSION)
                self._known = {
                    item["metadata"]["name"]: item
                    for item in listed.items
                    # Slices of others must never be changed or deleted.
                    if slices.is_of_node(item, self._node_name)
                }
                self._must_list = not self._is_watched
            return list(self._known.values())

    def create(self, item: Slice) -> Slice:
        return self._write("POST", _SLICES, item)

    def replace(self, item: Slice) -> Slice:
        """Replace the stored slice; see ports.Slices.

        The slice's resourceVersion makes the server answer with a conflict if another writer has
        changed it since it was read.
        """
        return self._write(
            "PUT", resource_path("resourceslices", name=item["metadata"]["name"]), item
        )

    def trial(self, item: Slice) -> Slice:
        # The slice may exist, so the server makes a name. Any generation does.
        spec = {**item["spec"], "pool": {**item["spec"]["pool"], "generation": 1}}
        body = {"metadata": {"generateName": names.SLICE_PREFIX}, "spec": spec}
        found: Slice = self._api.call(
            "POST",
            _SLICES,
            query={"dryRun": "All", "fieldManager": names.FIELD_MANAGER},
            body={**body, "apiVersion": RESOURCE_VERSION, "kind": "ResourceSlice"},
            permission=_PERMISSION,
        )
        return found

    def delete(self, item: Slice) -> None:
        metadata = item["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        path = resource_path("resourceslices", name=metadata["name"])
        with self._writing():
            try:
                self._api.change(
                    "DELETE", path, body={"preconditions": preconditions}, permission=_PERMISSION
                )
            except StatusError as error:
                if error.status != 404:
                    raise
            self._known.pop(metadata["name"], None)

    def watch(
        self,
        *,
        on_change: Callable[[], None],
        on_return: Callable[[], None],
        on_others: Callable[[Sequence[Slice]], None] = lambda _: None,
    ) -> Watch:
        """Return a watch of this node's slices, which keeps what fetch() returns up to date.

        Args:
            on_change: Called when another writer has added, changed or deleted a slice.
            on_return: Called when the watch begins, or begins again, since the server may be
                another one.
            on_others: Called with all slices that other drivers have on this node, when they
                may have changed.
        """
        self._is_watched = True
        others: dict[str, Slice] = {}

        def is_others(item: Slice) -> bool:
            spec = item["spec"]
            return bool(spec["driver"] != names.DRIVER and spec.get("nodeName") == self._node_name)

        def on_list(items: Sequence[Slice]) -> None:
            others.clear()
            others.update((each["metadata"]["name"], each) for each in items if is_others(each))
            on_others(tuple(others.values()))
            # The list may be older than own writes, so the next fetch() makes its own.
            with self._guard:
                self._must_list = True
            on_return()

        def on_event(event: str, item: Slice) -> None:
            metadata = item["metadata"]
            if is_others(item):
                others.pop(metadata["name"], None)
                if event != "DELETED":
                    others[metadata["name"]] = item
                on_others(tuple(others.values()))
                return
            with self._guard:
                known = self._known.get(metadata["name"], {"metadata": {}})["metadata"]
                if event == "DELETED":
                    is_news = metadata["uid"] == known.get("uid")
                else:
                    is_news = metadata["resourceVersion"] != known.get("resourceVersion")
                is_news = is_news and slices.is_of_node(item, self._node_name)
                self._must_list |= is_news
            if is_news:
                on_change()

        return Watch(
            self._api,
            _SLICES,
            _kept,
            selector=self._of_node,
            on_list=on_list,
            on_event=on_event,
            on_resume=on_return,
        )

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
                status = error.status if isinstance(error, StatusError) else 0
                is_refused = 400 <= status < 500 and status not in {404, 409}
                if not is_refused and not isinstance(error, MissingPermissionError):
                    self._must_list = True
                raise

    def _write(self, method: str, path: str, item: Slice) -> Slice:
        with self._writing():
            stored = self._api.call(
                method,
                path,
                query={"fieldValidation": "Strict", "fieldManager": names.FIELD_MANAGER},
                body={**item, "apiVersion": RESOURCE_VERSION, "kind": "ResourceSlice"},
                permission=_PERMISSION,
            )
            self._known[stored["metadata"]["name"]] = stored
        return stored
