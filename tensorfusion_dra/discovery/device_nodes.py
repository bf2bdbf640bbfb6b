"""The NVIDIA device nodes of the host, checked before a container is promised them."""

import stat
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

_REQUIRED: Final = ("nvidiactl", "nvidia-uvm")
"""No CUDA program starts without these."""
_OPTIONAL: Final = ("nvidia-uvm-tools", "nvidia-modeset")


class HostDeviceNodes:
    """See ports.discovery.DeviceNodes."""

    def __init__(self, folder: Path = Path("/dev")) -> None:
        self._folder = folder

    def of_card(self, minor: int) -> tuple[str, ...]:
        """See ports.discovery.DeviceNodes."""
        return (self._required(f"nvidia{minor}"),)

    def common(self) -> tuple[str, ...]:
        """See ports.discovery.DeviceNodes."""
        required = tuple(self._required(name) for name in _REQUIRED)
        optional = (self._folder / name for name in _OPTIONAL)
        return (*required, *(str(path) for path in optional if path.is_char_device()))

    def _required(self, name: str) -> str:
        path = self._folder / name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise RetryableError(f"device node {path}: {error.strerror}") from error
        if not stat.S_ISCHR(mode):
            raise RetryableError(f"device node {path}: found no character device, expected one")
        return str(path)
