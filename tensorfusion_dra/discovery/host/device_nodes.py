"""The NVIDIA device nodes of the host, checked before a container gets them."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

_DEV: Final = Path("/dev")
_CONTROL: Final = "nvidiactl"
_REQUIRED: Final = (_CONTROL, "nvidia-uvm")
"""Nodes without which no CUDA program starts."""
_OPTIONAL: Final = ("nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """A folder, under its path in this process and its path on the host."""

    here: Path
    on_host: Path

    def required(self, name: str) -> str:
        """Return the path on the host of a required node.

        Raises:
            RetryableError: The node is missing or not a character device.
        """
        path = self.here / name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise RetryableError(f"device node {path}: {error.strerror}") from error
        if not stat.S_ISCHR(mode):
            raise RetryableError(
                f"device node {path}: found another kind of file, expected a character device"
            )
        return str(self.on_host / name)


class HostDeviceNodes:
    """Device nodes in the host's /dev, or in the dev folder of the driver root.

    NVIDIA's driver container creates the nodes in its own /dev, below its root folder, and the
    host's /dev often has none. NVIDIA's device plugin and container toolkit also use the nodes
    below the driver root.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        driver_root: Path = Path("/"),
        root_on_host: Path | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: Folder of the nodes, here and on the host. None means the dev folder of the
                driver root while it has the control device, and /dev otherwise.
            driver_root: Root folder of the driver in this process.
            root_on_host: Path of that folder on the host; the same path if None.
        """
        self._chosen: Final = folder
        self._driver_root: Final = driver_root
        self._root_on_host: Final = root_on_host or driver_root

    def folder(self) -> Path:
        """Return the folder that has the nodes now, under its path in this process."""
        return self._current().here

    def of_card(self, minor: int) -> tuple[str, ...]:
        """Return the paths on the host of a card's own nodes.

        Raises:
            RetryableError: A node is missing or not a character device.
        """
        return (self._current().required(f"nvidia{minor}"),)

    def common(self) -> tuple[str, ...]:
        """Return the paths on the host of the nodes that every container with a card needs.

        Raises:
            RetryableError: A node that every CUDA program needs is missing.
        """
        folder = self._current()
        required = tuple(folder.required(name) for name in _REQUIRED)
        optional = (name for name in _OPTIONAL if (folder.here / name).is_char_device())
        return (*required, *(str(folder.on_host / name) for name in optional))

    def _current(self) -> _Folder:
        if self._chosen is not None:
            return _Folder(here=self._chosen, on_host=self._chosen)
        of_driver = self._driver_root / "dev"
        if (of_driver / _CONTROL).is_char_device():
            return _Folder(here=of_driver, on_host=self._root_on_host / "dev")
        return _Folder(here=_DEV, on_host=_DEV)
