"""Caches of cluster-scoped objects, kept current by a watch: GPUPools, this node's Node, ..."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.watch import Item, Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError

_GROUP_VERSION: Final = f"{names.TENSOR_FUSION_GROUP}/{names.TENSOR_FUSION_VERSION}"
_GPUPOOLS: Final = f"/apis/{_GROUP_VERSION}/{names.GPUPOOLS}"
_TEMPLATES: Final = f"/apis/{_GROUP_VERSION}/{names.SCHEDULING_CONFIG_TEMPLATES}"
_NODES: Final = "/api/v1/nodes"


class ObjectCache:
    """Cache of one kind of object; implements ports.cluster.Objects.

    While the API server is unreachable, the cache keeps the objects as they were.
    """

    def __init__(self, api: Api, path: str, *, name: str, on_change: Callable[[], None]) -> None:
        """Create the watch without starting it.

        Args:
            path: The collection of a cluster-scoped kind.
            name: Keep only the object of this name; empty keeps all.
            on_change: Called when the result of items() may have changed.
        """
        self._path = path
        self._name = name
        self._on_change = on_change
        self._guard = Lock()  # guards _items and _absent
        self._items: dict[str, Item] | None = None
        self._absent = False
        self._watch = Watch(
            api,
            lambda: path,
            selector=f"metadata.name={name}" if name else "",
            on_list=self._listed,
            on_event=self._changed,
            on_absent=self._not_served,
        )

    def run(self) -> None:
        """Watch until stopped."""
        self._watch.run()

    def stop(self) -> None:
        """End run()."""
        self._watch.stop()

    def items(self) -> Sequence[Item]:
        with self._guard:
            if self._absent:
                raise InputError(
                    f"{self._path}: the API server has no such resource, "
                    f"expected the CustomResourceDefinitions of Tensor Fusion"
                )
            if self._items is None:
                raise RetryableError(f"{self._path}: not listed by the API server yet")
            return tuple(self._items.values())

    def _listed(self, items: Sequence[Item], _version: str) -> None:
        with self._guard:
            self._absent = False
            self._items = {_name(item): item for item in items if self._matters(item)}
        self._on_change()

    def _changed(self, event: str, item: Item) -> None:
        if not self._matters(item):
            return
        with self._guard:
            assert self._items is not None  # a watch begins with a list
            if event == "DELETED":
                self._items.pop(_name(item), None)
            else:
                self._items[_name(item)] = item
        self._on_change()

    def _matters(self, item: Item) -> bool:
        # A proxy between the driver and the API server may ignore a field selector.
        return not self._name or _name(item) == self._name

    def _not_served(self) -> None:
        with self._guard:
            self._absent = True
        self._on_change()


def gpupools(api: Api, *, name: str = "", on_change: Callable[[], None]) -> ObjectCache:
    """Return a cache of all GPUPools, or of the one with this name."""
    return ObjectCache(api, _GPUPOOLS, name=name, on_change=on_change)


def scheduling_config_templates(api: Api, *, on_change: Callable[[], None]) -> ObjectCache:
    """Return a cache of all SchedulingConfigTemplates."""
    return ObjectCache(api, _TEMPLATES, name="", on_change=on_change)


def nodes(api: Api, *, name: str, on_change: Callable[[], None]) -> ObjectCache:
    """Return a cache of the Node object with this name."""
    return ObjectCache(api, _NODES, name=name, on_change=on_change)


def _name(item: Item) -> str:
    return str(item["metadata"]["name"])
