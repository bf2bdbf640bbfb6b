"""Disk space that is reserved for removing records.

SQLite writes a removal to its log before it frees anything, and it also writes to the log at
startup. On a full disk both would fail. The reserve is a file as large as both need together. It is
deleted to make room, and created again as soon as the disk has room.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE_NAME: Final = "ledger.reserve"
_BYTES: Final = 256 * 1024
"""SQLite's index of the log takes 32 KiB; a removal takes 20 to 60 KiB of the log."""


@dataclass(frozen=True, slots=True)
class DiskReserve:
    """The disk reserve of one ledger; several processes may use it."""

    folder: Path

    def ensure(self) -> bool:
        """Create the reserve unless it exists; return False if the disk has no room for it now."""
        try:
            if self._path.stat().st_size == _BYTES:
                return True
        except OSError:
            pass
        try:
            # Random bytes: a compressing file system would reserve no room for zeros.
            self._path.write_bytes(os.urandom(_BYTES))
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> bool:
        """Delete the reserve to free its space; return False if there was none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    @property
    def _path(self) -> Path:
        return self.folder / FILE_NAME
