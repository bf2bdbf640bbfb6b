"""Room on the disk that is kept for removing records.

A removal is written to SQLite's log before anything is freed, and so is the first page after a
start: on a full disk neither would work. The reserve is a file of the size that both take. It is
removed to make room, and made again as soon as the disk has some.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE_NAME: Final = "ledger.reserve"
_BYTES: Final = 256 * 1024
"""SQLite's index of the log takes 32 KiB, a removal 20 to 60 KiB of the log."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """The reserve of one ledger; may be used by several processes."""

    folder: Path

    def ensure(self) -> bool:
        """Makes the reserve unless it is there; False if the disk has no room for it now."""
        try:
            if self._path.stat().st_size == _BYTES:
                return True
        except OSError:
            pass
        try:
            # Not zeros: a file system that compresses would keep no room for them.
            self._path.write_bytes(os.urandom(_BYTES))
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> bool:
        """Gives the room back; False if there was none to give."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    @property
    def _path(self) -> Path:
        return self.folder / FILE_NAME
