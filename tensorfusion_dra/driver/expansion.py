"""What a pool adds to its cards' memory from the host."""

from collections.abc import Callable

import structlog

from tensorfusion_dra.core.devices.gpu import HostResources
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.ports.discovery import HostSizes

log = structlog.get_logger()


class Expansion:
    """Reads the host's sizes, each only if the pool expands memory into it.

    A size that cannot be read never costs a card: the last known size counts, or 0 if there is
    none, until it can be read.

    Attributes:
        missing: One text for each size that the pool needs and that was not read last time.
    """

    def __init__(self, sizes: HostSizes | None) -> None:
        """Read nothing yet; without sizes, the pool adds nothing."""
        self._sizes = sizes
        self._known = HostResources()
        self._throttle = LogThrottle()
        self.missing: tuple[str, ...] = ()

    def read(self, ratios: Oversubscription | None) -> HostResources:
        """Return the host's sizes as this pool needs them; 0 for one that it does not use."""
        if self._sizes is None or ratios is None:
            self.missing = ()
            return HostResources()
        missing: list[str] = []

        def size(percent: int, ask: Callable[[], int], known: int) -> int:
            if not percent:
                return 0
            try:
                return ask()
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
