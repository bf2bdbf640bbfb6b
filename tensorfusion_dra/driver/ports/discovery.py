"""Interfaces to the machine and its cards: what the driver calls, and what each call promises."""

from collections.abc import Callable
from typing import Protocol

from tensorfusion_dra.core.claims.prepared import Mount
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.errors import RetryableError


class HungError(RetryableError):
    """A call into the NVIDIA driver does not return; it cannot be cancelled either.

    Attributes:
        call: Description of the call; the same text for the same call, however old it is.
    """

    def __init__(self, text: str, call: str) -> None:
        super().__init__(text)
        self.call = call


class Discovery(Protocol):
    """Reader of the node's GPUs."""

    def read(self) -> Inventory:
        """Return every card of the node as it is now.

        Raises:
            HungError: A call into the NVIDIA driver has been running for too long.
            RetryableError: The cards cannot be read yet; the text names what is missing, such as
                the library or the loaded driver.
            FatalError: The NVIDIA driver was replaced; only a new process can load its library.
        """
        ...


class HostSizes(Protocol):
    """Sizes of the host's memory and disk, into which a pool may expand VRAM."""

    def memory_bytes(self) -> int:
        """Return the size of the machine's memory, regardless of this container's own limit.

        Raises:
            RetryableError: It cannot be read; the text names the file.
        """
        ...

    def disk_bytes(self) -> int:
        """Return the size of the data disk's file system, including used space.

        Raises:
            RetryableError: It cannot be read; the text names the folder.
        """
        ...


class CardEvents(Protocol):
    """Source of the events that the NVIDIA driver reports about the node's cards."""

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """Wait for events of these cards only, from now on.

        Other cards are not kept open, so that they can be reset.
        """
        ...

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """Call `on_event` for each event, until stopped."""
        ...

    def stop(self) -> None:
        """End run()."""
        ...


class DeviceNodes(Protocol):
    """Finder of the host's device nodes; all paths are as the container runtime sees them."""

    def of_card(self, minor: int) -> tuple[str, ...]:
        """Return the paths of a card's own nodes, by its minor number.

        Raises:
            RetryableError: A node is missing or is no character device.
        """
        ...

    def common(self) -> tuple[str, ...]:
        """Return the paths of the nodes that every container with a card needs.

        Raises:
            RetryableError: A node without which no CUDA program starts is missing.
        """
        ...


class DriverFiles(Protocol):
    """Finder of the NVIDIA driver's libraries for containers."""

    def toolkit_device(self, gpu_uuid: str) -> str | None:
        """Return the card's qualified CDI device name from NVIDIA's container toolkit, or None."""
        ...

    def mounts(self) -> tuple[Mount, ...]:
        """Return mounts of the libraries found under the driver root.

        Raises:
            RetryableError: A library without which no CUDA program starts is missing.
        """
        ...
