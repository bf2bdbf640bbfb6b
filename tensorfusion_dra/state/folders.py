"""Makes folders that other programs on the host go through."""

from pathlib import Path
from typing import Final

_MODE: Final = 0o755
"""The hypervisor, container runtimes and containers' users need not be root."""


def make(path: Path) -> None:
    """Makes a folder and its missing parents with mode 0755, whatever the umask.

    Folders that are there already keep their mode: they are somebody else's.

    Raises:
        OSError: One of them cannot be made.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        # Another thread may have made it meanwhile.
        folder.mkdir(exist_ok=True)
        folder.chmod(_MODE)
