"""The NVIDIA device nodes of the host, checked before a container is promised them."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

_DEV: Final = Path("/dev")
_CONTROL: Final = "nvidiactl"
_REQUIRED: Final = (_CONTROL, "nvidia-uvm")
"""No CUDA program starts without these."""
_OPTIONAL: Final = ("nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """One folder, as this process and as the container runtime sees it."""

    here: Path
    on_host: Path

    def required(self, name: str) -> str:
        """The path on the host of a node that has to be there.

        Raises:
            RetryableError: It is missing or no character device.
        """
        path = self.here / name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise RetryableError(f"device node {path}: {error.strerror}") from error
        if not stat.S_ISCHR(mode):
            raise RetryableError(f"device node {path}: found no character device, expected one")
        return str(self.on_host / name)


class HostDeviceNodes:
    """See ports.discovery.DeviceNodes.

    NVIDIA's driver container makes the nodes in a /dev of its own, which its root folder holds,
    and often there are none in the host's. NVIDIA's device plugin and container toolkit take those
    below the driver root, too.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        driver_root: Path = Path("/"),
        root_on_host: Path | None = None,
    ) -> None:
        """Looks at nothing yet.

        Args:
            folder: Of the nodes, here and on the host; None for the driver root's dev as long as
                it has the control device, and else /dev.
            driver_root: The driver's root folder, as this process sees it.
            root_on_host: As the container runtime sees it; the same if None.
        """
        self._chosen: Final = folder
        self._driver_root: Final = driver_root
        self._root_on_host: Final = root_on_host or driver_root

    def folder(self) -> Path:
        """Where the nodes are now, as this process sees it."""
        return self._look().here

    def of_card(self, minor: int) -> tuple[str, ...]:
        """See ports.discovery.DeviceNodes."""
        return (self._look().required(f"nvidia{minor}"),)

    def common(self) -> tuple[str, ...]:
        """See ports.discovery.DeviceNodes."""
        folder = self._look()
        required = tuple(folder.required(name) for name in _REQUIRED)
        optional = (name for name in _OPTIONAL if (folder.here / name).is_char_device())
        return (*required, *(str(folder.on_host / name) for name in optional))

    def _look(self) -> _Folder:
        if self._chosen is not None:
            return _Folder(here=self._chosen, on_host=self._chosen)
        of_driver = self._driver_root / "dev"
        if (of_driver / _CONTROL).is_char_device():
            return _Folder(here=of_driver, on_host=self._root_on_host / "dev")
        return _Folder(here=_DEV, on_host=_DEV)
