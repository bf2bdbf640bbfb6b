"""Tells the publisher when somebody changed or deleted the node's slices."""

import time
from collections.abc import Callable

from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.watch import Item, Watch


class SliceWatch(Watch):
    """A watch of slices for who reads them anew at every change."""

    def __init__(
        self,
        resource_api: ResourceApi,
        *,
        selector: str,
        on_change: Callable[[], None],
        on_return: Callable[[], None],
        concerns: Callable[[Item], bool] = lambda _item: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watches the slices of a field selector.

        Args:
            on_change: A slice was added, changed or deleted.
            on_return: The watch begins, or begins again: anything may have happened meanwhile,
                and the server may be another one.
            concerns: Whether a slice is one of those to watch: a field selector may be ignored.
            clock: In seconds.
        """
        super().__init__(
            resource_api.api,
            resource_api.slices,
            selector=selector,
            on_list=lambda _items: on_return(),
            on_event=lambda _type, item: on_change() if concerns(item) else None,
            list_limit=1,
            clock=clock,
        )
