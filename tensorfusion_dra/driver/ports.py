"""What the driver needs from outside, and what each of them promises."""

from typing import Protocol

from tensorfusion_dra.core.gpu import Inventory


class Discovery(Protocol):
    """Reads the node's GPUs."""

    def read(self) -> Inventory:
        """Every card of the node as it is now.

        Raises:
            RetryableError: There is no answer yet (no library, driver not loaded, call hung); the
                text says what is waited for.
        """
        ...
