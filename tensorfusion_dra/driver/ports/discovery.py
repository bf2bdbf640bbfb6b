"""What the driver needs to know of the machine and its cards, and what it is promised."""

from collections.abc import Callable
from typing import Protocol

from tensorfusion_dra.core.claims.mounts import Mount
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.errors import RetryableError


class HungError(RetryableError):
    """A call into the driver does not come back; it cannot be ended either.

    Attributes:
        question: What was asked, the same text as long as it is the same call.
    """

    def __init__(self, text: str, question: str) -> None:
        super().__init__(text)
        self.question = question


class Discovery(Protocol):
    """Reads the node's GPUs."""

    def read(self) -> Inventory:
        """Every card of the node as it is now.

        Raises:
            HungError: A call has been running for too long.
            RetryableError: There is no answer yet (no library, driver not loaded); the text says
                what is waited for.
            FatalError: The driver was replaced; only a new process can load its library.
        """
        ...


class HostSizes(Protocol):
    """Sizes of what a pool may expand its cards' memory into."""

    def memory_bytes(self) -> int:
        """Return the machine's memory, whatever part of it this container may use.

        Raises:
            RetryableError: It cannot be read; the text names the file.
        """
        ...

    def disk_bytes(self) -> int:
        """Return the size of the data disk's file system, used or not.

        Raises:
            RetryableError: It cannot be read; the text names the folder.
        """
        ...


class CardEvents(Protocol):
    """What the driver reports of the node's cards by itself."""

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """These cards, and no others, are waited for from now on.

        Of the others nothing is kept open, so that they can be reset.
        """
        ...

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """Waits until stopped, and hands over what is reported."""
        ...

    def stop(self) -> None:
        """Ends run()."""
        ...


class DeviceNodes(Protocol):
    """The device nodes of the host, by the paths that the container runtime knows them by."""

    def of_card(self, minor: int) -> tuple[str, ...]:
        """Paths of a card's own nodes.

        Raises:
            RetryableError: One is missing or no character device.
        """
        ...

    def common(self) -> tuple[str, ...]:
        """Paths of the nodes that every container with a card needs.

        Raises:
            RetryableError: One that no CUDA program can do without is missing.
        """
        ...


class DriverFiles(Protocol):
    """The NVIDIA driver's libraries, as a container can get them."""

    def toolkit_device(self, gpu_uuid: str) -> str | None:
        """The card's qualified CDI device in the spec of NVIDIA's container toolkit, if any."""
        ...

    def mounts(self) -> tuple[Mount, ...]:
        """The libraries found under the driver's root.

        Raises:
            RetryableError: Those that no CUDA program can do without are missing.
        """
        ...
