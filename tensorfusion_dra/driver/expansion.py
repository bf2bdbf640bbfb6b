"""Sizes of the host's memory and disk, for pools that expand virtual VRAM into them."""

from collections.abc import Callable

import structlog

from tensorfusion_dra.core.devices.gpu import HostResources
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports.discovery import HostSizes
from tensorfusion_dra.runtime.log_throttle import LogThrottle

log = structlog.get_logger()


class Expansion:
    """Reader of the host's sizes; it reads a size only if the pool expands VRAM into it.

    A size that cannot be read does not keep a card from being published: until it can be read, its
    last known value counts, or 0 if there is none.

    Attributes:
        missing: One error text for each size that the pool needs and that the last read() did not
            get.
    """

    def __init__(self, sizes: HostSizes | None) -> None:
        """Read nothing yet; None as the source of sizes makes them all 0."""
        self._sizes = sizes
        self._known = HostResources()
        self._throttle = LogThrottle()
        self.missing: tuple[str, ...] = ()

    def read(self, ratios: Oversubscription | None) -> HostResources:
        """Return the host's sizes for a pool; 0 for a size that the pool does not use.

        Args:
            ratios: The pool's ratios; None if it does not oversubscribe.
        """
        if self._sizes is None or ratios is None:
            self.missing = ()
            return HostResources()
        missing: list[str] = []

        def size(percent: int, read: Callable[[], int], known: int) -> int:
            if not percent:
                return 0
            try:
                return read()
            except RetryableError as error:
                missing.append(str(error))
                return known

        self._known = HostResources(
            memory_bytes=size(
                ratios.host_memory_percent, self._sizes.memory_bytes, self._known.memory_bytes
            ),
            disk_bytes=size(
                ratios.host_disk_percent, self._sizes.disk_bytes, self._known.disk_bytes
            ),
        )
        self.missing = tuple(missing)
        self._log()
        return self._known

    def _log(self) -> None:
        error = "; ".join(self.missing)
        if error and self._throttle.is_new(error):
            log.warning("expansion_size_unknown", error=error)
        elif not error and self._throttle.over():
            log.info("expansion_size_read")
