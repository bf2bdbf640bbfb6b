"""Disks that refuse writes, even from root."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_NOBODY: Final = 65534


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Prevent all creations and changes in the folder during the block.

    Permissions do not restrict root, so a test that runs as root becomes another user during the
    block. That user must be able to reach the folder.
    """
    mode, user = folder.stat().st_mode, os.geteuid()
    for path in (folder, *folder.iterdir()):
        path.chmod(0o555)
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)
        for path in folder.iterdir():
            path.chmod(0o644)
