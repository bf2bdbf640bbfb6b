"""What the machine has beside its cards: memory, and the size of a disk."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.gpu import Host, Inventory
from tensorfusion_dra.driver.ports.discovery import Discovery

_MEMORY: Final = re.compile(r"^MemTotal: +([0-9]+) kB$", re.MULTILINE)


class WithHost:
    """See ports.discovery.Discovery: another one's cards, and the machine around them."""

    def __init__(self, cards: Discovery, *, data_folder: Path) -> None:
        self._cards: Final = cards
        self._data_folder: Final = data_folder

    def read(self) -> Inventory:
        """See ports.discovery.Discovery."""
        return replace(self._cards.read(), host=read(self._data_folder))


def read(data_folder: Path, *, proc: Path = Path("/proc")) -> Host:
    """The machine's memory, whatever this container may use of it, and its data disk.

    Args:
        data_folder: Any folder on that disk.
        proc: Where the machine's /proc is.

    Raises:
        RetryableError: One of them cannot be read.
    """
    file = proc / "meminfo"
    try:
        found = _MEMORY.search(file.read_text(encoding="ascii", errors="replace"))
        disk = os.statvfs(data_folder)
    except OSError as error:
        raise RetryableError(f"host: {error.filename}: {error.strerror}") from error
    if found is None:
        raise RetryableError(f"host: {file}: found no MemTotal")
    return Host(memory_bytes=int(found[1]) * 1024, disk_bytes=disk.f_frsize * disk.f_blocks)
