"""The cards that all nodes publish in this driver's ResourceSlices, for the webhook."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

from tensorfusion_dra.cluster.api import Api, resource_path
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import cards
from tensorfusion_dra.core.admission.cards import Cards, OfNode
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.projection import Projection, projected

_SLICES: Final = resource_path("resourceslices")
_PUBLISHED: Final[Projection] = {
    "metadata!": {"name!": str},
    "spec!": {
        "driver!": str,
        "nodeName": str,
        "pool!": {"name!": str, "generation": int, "resourceSliceCount!": int},
        "devices": [dict],
    },
}


class PublishedCards:
    """The cards of all nodes, kept up to date by a watch; implements the webhook's CardReader.

    Attributes:
        run, stop: Of the watch.
    """

    def __init__(self, server: Api) -> None:
        self._api = server
        self._query = {"fieldSelector": f"spec.driver={names.DRIVER}"}
        self._guard = Lock()  # guards all below
        self._by_node: dict[str, dict[str, OfNode]] | None = None  # by the slice's name
        self._known: Cards | None = None  # None if it is to be made again
        self._selecting = Lock()
        watch = Watch(
            server,
            _SLICES,
            _of_cards,
            selector=self._query["fieldSelector"],
            on_list=self._listed,
            on_event=self._changed,
        )
        self.run: Final = watch.run
        self.stop: Final = watch.stop

    def current(self) -> Cards:
        with self._guard:
            if self._by_node is None:
                raise RetryableError("ResourceSlices: not listed by the API server yet")
            if self._known is None:
                together = {name: cards.together(s.values()) for name, s in self._by_node.items()}
                self._known = cards.of_nodes(together)
            return self._known

    def selected(self, select: Callable[[Slice], Slice], *, wait_seconds: float) -> Cards:
        # One at a time: each takes seconds in a cluster of thousands of nodes.
        if not self._selecting.acquire(timeout=max(0.0, wait_seconds)):
            raise RetryableError("ResourceSlices: other selectors are being evaluated")
        try:
            listed = self._api.read_list(
                "ResourceSlices",
                _SLICES,
                lambda item: _of_cards(select(projected(item, _PUBLISHED))),
                query=self._query,
                wait_seconds=wait_seconds,
            )
        finally:
            self._selecting.release()
        by_node: dict[str, dict[str, OfNode]] = {}
        for item in listed.items:
            _add(by_node, item)
        return cards.of_nodes({n: cards.together(s.values()) for n, s in by_node.items()})

    def _listed(self, items: Sequence[Slice]) -> None:
        by_node: dict[str, dict[str, OfNode]] = {}
        for item in items:
            _add(by_node, item)
        with self._guard:
            self._by_node, self._known = by_node, None

    def _changed(self, event: str, item: Slice) -> None:
        with self._guard:
            assert self._by_node is not None  # a watch begins with a list
            self._known = None
            if event != "DELETED":
                _add(self._by_node, item)
            elif of_node := self._by_node.get(item["node"]):
                of_node.pop(item["metadata"]["name"], None)
                if not of_node:
                    del self._by_node[item["node"]]


def _of_cards(item: Any) -> dict[str, Any]:
    """Return what is kept of a slice for the webhook: its name, its node, its kinds of cards."""
    found = projected(item, _PUBLISHED)
    return {
        "metadata": found["metadata"],
        "node": str(found["spec"].get("nodeName", "")),
        "cards": cards.of_slice(found),
    }


def _add(by_node: dict[str, dict[str, OfNode]], item: Slice) -> None:
    """Add what is kept of a slice to its node, unless that has many others."""
    of_node, name = by_node.setdefault(item["node"], {}), item["metadata"]["name"]
    if name in of_node or len(of_node) < cards.MAX_SLICES:
        of_node[name] = item["cards"]
