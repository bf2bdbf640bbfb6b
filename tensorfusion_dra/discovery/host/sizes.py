"""Sizes of the host's memory and data disk."""

import os
import re
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError

_MEMORY: Final = re.compile(r"^MemTotal: +([0-9]+) kB$", re.MULTILINE)


class HostSizes:
    """Reader of /proc/meminfo and of the data disk's file system."""

    def __init__(self, data_folder: Path, *, proc: Path = Path("/proc")) -> None:
        """Read nothing yet.

        Args:
            data_folder: Any folder on the data disk.
            proc: The machine's /proc.
        """
        self._data_folder: Final = data_folder
        self._proc: Final = proc

    def memory_bytes(self) -> int:
        """Return the machine's memory, regardless of this container's limit.

        Raises:
            RetryableError: It cannot be read; the text names the file.
        """
        file = self._proc / "meminfo"
        try:
            found = _MEMORY.search(file.read_text(encoding="ascii", errors="replace"))
        except OSError as error:
            raise RetryableError(f"host memory: {file}: {error.strerror}") from error
        if found is None:
            raise RetryableError(f"host memory: {file}: found no line MemTotal, expected one")
        return int(found[1]) * 1024

    def disk_bytes(self) -> int:
        """Return the size of the data disk's file system, used or not.

        Raises:
            RetryableError: It cannot be read; the text names the folder.
        """
        try:
            disk = os.statvfs(self._data_folder)
        except OSError as error:
            raise RetryableError(
                f"data disk: {self._data_folder}: {error.strerror}, expected a folder on the disk "
                f"into which memory is expanded (setting data-dir)"
            ) from error
        return disk.f_frsize * disk.f_blocks
