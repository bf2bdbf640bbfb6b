"""Creation of folders that other programs on the host enter."""

from pathlib import Path
from typing import Final

_MODE: Final = 0o755
"""Readable for all: hypervisor, container runtimes and containers may run as other users."""


def make(path: Path) -> None:
    """Create a folder and its missing parents with mode 0755, regardless of the umask.

    Existing folders keep their mode, because they belong to another program.

    Raises:
        OSError: One of them cannot be created.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        # Another thread may have created it in the meantime.
        folder.mkdir(exist_ok=True)
        folder.chmod(_MODE)
