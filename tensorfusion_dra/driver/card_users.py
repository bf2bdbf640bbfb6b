"""Device plugins and DRA drivers that also give away this node's cards, as last seen."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import structlog

from tensorfusion_dra.core.devices import other_users
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.devices.other_users import Allocations, OtherUser
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.runtime.loops import LogThrottle

log = structlog.get_logger()


class CardUsers:
    """The other users of cards, from the kubelet's list and from ResourceSlices; for all threads.

    As long as the kubelet does not answer, its last answer stays in use.
    """

    def __init__(self, allocations: Callable[[], Allocations] = Allocations) -> None:
        """Read nothing yet.

        Args:
            allocations: Asks the kubelet; raises RetryableError.
        """
        self._read = allocations
        self._throttle = LogThrottle()
        # Each replaced as a whole, so that reading needs no lock:
        self._allocations = Allocations()
        self._slices: Sequence[Slice] = ()
        self._since: Mapping[str, tuple[str, datetime]] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when the ResourceSlices of other drivers have changed."""

    def set_slices(self, slices: Sequence[Slice]) -> None:
        """Use these ResourceSlices of other drivers on this node."""
        if slices != self._slices:
            self._slices = slices
            self.on_change()

    def read(self) -> None:
        """Ask the kubelet again."""
        try:
            self._allocations = self._read()
        except RetryableError as error:
            if self._throttle.is_new(str(error)):
                log.warning("allocations_unknown", error=str(error))
        else:
            self._throttle.over()

    def of_cards(self, gpus: Iterable[Gpu]) -> Mapping[str, OtherUser]:
        """Return the cards' other users by GPU UUID."""
        return other_users.of_cards(gpus, self._allocations, self._slices)

    def since(self, found: Mapping[str, OtherUser]) -> Mapping[str, datetime]:
        """Return by GPU UUID since when each card has had this other user; for one thread."""
        known, now = self._since, datetime.now(UTC)
        self._since = {
            uuid: known[uuid] if uuid in known and known[uuid][0] == user.name else (user.name, now)
            for uuid, user in found.items()
        }
        return {uuid: at for uuid, (_, at) in self._since.items()}
