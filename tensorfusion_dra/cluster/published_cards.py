"""The cards that all nodes publish in this driver's ResourceSlices, for the webhook."""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, Final

from tensorfusion_dra.cluster.api import Api, resource_path
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import cards
from tensorfusion_dra.core.admission.cards import Cards, PublishedNodes
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.projection import Projection, projected

_SLICES: Final = resource_path("resourceslices")
_SELECT_SECONDS: Final = 60.0
"""Time to evaluate a selector on all cards; with 5,000 nodes this takes about ten seconds."""
_KEPT_SECONDS: Final = 30.0
_MAX_KEPT: Final = 64
_MAX_WAITING: Final = 8
_MAX_WAITING_OF_NAMESPACE: Final = 2
_OWN_SECONDS: Final = 3.0
"""Time for which a review waits for its own selector; in most clusters it takes less."""
_OTHERS_SECONDS: Final = 0.2
"""The same while the selectors of other reviews come first."""
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
        run: Of the watch.
    """

    def __init__(self, server: Api) -> None:
        self._api = server
        self._query = {"fieldSelector": f"spec.driver={names.DRIVER}"}
        self._guard = Lock()  # guards all below
        self._nodes: PublishedNodes | None = None
        self._known: Cards | None = None  # None if it is to be made again
        # By key, with the namespace that asked; the oldest first.
        self._selections: dict[Hashable, tuple[str, Future[tuple[float, Cards]]]] = {}
        self._thread: Final = ThreadPoolExecutor(1, "selections")
        self._is_stopped = False
        watch = Watch(
            server,
            _SLICES,
            _of_cards,
            selector=self._query["fieldSelector"],
            on_list=self._listed,
            on_event=self._changed,
        )
        self.run: Final = watch.run
        self._stop_watch: Final = watch.stop

    def stop(self) -> None:
        """End the watch, and select no more."""
        self._is_stopped = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._stop_watch()

    def current(self) -> Cards:
        with self._guard:
            if self._nodes is None:
                raise RetryableError("ResourceSlices: not listed by the API server yet")
            if self._known is None:
                self._known = self._nodes.cards()
            return self._known

    def selected(
        self,
        key: Hashable,
        select: Callable[[Slice], Slice],
        *,
        namespace: str,
        wait_seconds: float,
    ) -> Cards:
        with self._guard:
            _, found = self._selections.get(key, ("", None))
            waiting = [of for of, each in self._selections.values() if not each.done()]
            if found is None or _is_over(found):
                is_full = waiting.count(namespace) >= _MAX_WAITING_OF_NAMESPACE
                if is_full or len(waiting) >= _MAX_WAITING:
                    raise RetryableError("ResourceSlices: many selectors are being evaluated")
                found = self._thread.submit(self._select, select)
                self._selections.pop(key, None)  # it is the newest now
                self._selections[key] = namespace, found
                for oldest in [*self._selections][:-_MAX_KEPT]:
                    del self._selections[oldest]
                patience = _OTHERS_SECONDS if waiting else _OWN_SECONDS
            else:
                patience = _OTHERS_SECONDS
        try:
            return found.result(timeout=max(0.0, min(patience, wait_seconds)))[1]
        except TimeoutError:
            raise RetryableError(
                "ResourceSlices: the selector is still being evaluated on all cards; try again"
            ) from None

    def _select(self, select: Callable[[Slice], Slice]) -> tuple[float, Cards]:
        """Return when the cards were selected, and which they are."""

        def reduced(item: Any) -> dict[str, Any]:
            if self._is_stopped:
                raise RetryableError("the process is stopping")
            return _of_cards(select(projected(item, _PUBLISHED)))

        listed = self._api.listed(
            _SLICES,
            reduced,
            query=self._query,
            all_seconds=_SELECT_SECONDS,
        )
        return time.monotonic(), _added_up(listed.items).cards()

    def _listed(self, items: Sequence[Slice]) -> None:
        nodes = _added_up(items)
        with self._guard:
            self._nodes, self._known = nodes, None

    def _changed(self, event: str, item: Slice) -> None:
        with self._guard:
            assert self._nodes is not None  # a watch begins with a list
            self._known = None
            found = None if event == "DELETED" else item["cards"]
            self._nodes.put(item["node"], item["metadata"]["name"], found)


def _is_over(found: Future[tuple[float, Cards]]) -> bool:
    """Return True if the selection has to be made again."""
    if not found.done():
        return False
    return found.exception() is not None or (time.monotonic() - found.result()[0] > _KEPT_SECONDS)


def _added_up(items: Iterable[Slice]) -> PublishedNodes:
    nodes = PublishedNodes()
    for each in items:
        nodes.put(each["node"], each["metadata"]["name"], each["cards"])
    return nodes


def _of_cards(item: Any) -> dict[str, Any]:
    """Return what is kept of a slice for the webhook: its name, its node, its kinds of cards."""
    found = projected(item, _PUBLISHED)
    return {
        "metadata": found["metadata"],
        "node": str(found["spec"].get("nodeName", "")),
        "cards": cards.of_slice(found),
    }
