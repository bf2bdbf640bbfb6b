"""Disks that refuse writes, for root as well."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_NOBODY: Final = 65534


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be created or changed in the folder.

    Permissions do not bind root, so root's tests are somebody else meanwhile; whoever that is
    must be able to reach the folder.
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


@contextmanager
def no_room_after(size: int) -> Iterator[None]:
    """No file of this process can grow beyond this size, in bytes; Python ignores SIGXFSZ."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
