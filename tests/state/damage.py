"""Damaged ledgers: where the parts of a ledger are, and obstacles in their places."""

import os
import re
import shutil
from pathlib import Path
from typing import Final

ALL_UIDS: Final = [f"uid-{number:02}" for number in range(40)]
"""UIDs of the claims in a ledger from `existing()`."""
_QUARANTINED: Final = re.compile(r"ledger-damaged-\d{8}T\d{6}\.\d{6}Z\.sqlite3")


def quarantined(folder: Path) -> list[Path]:
    """Return the quarantined databases in a ledger's folder."""
    return [path for path in folder.iterdir() if _QUARANTINED.fullmatch(path.name)]


def copy_of(folder: Path, claim_uid: str) -> Path:
    """Return the path of the copy of a claim's record."""
    return folder / "records" / f"{claim_uid}.record"


def obstruct(path: Path, kind: str) -> None:
    """Replace a file or folder by something of another kind."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "folder":
            path.mkdir()
        case "full folder":
            path.mkdir()
            (path / "something").touch()
        case "loop":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.touch()
