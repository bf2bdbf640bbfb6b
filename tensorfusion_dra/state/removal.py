"""Removal of folders into which containers wrote, whatever the content.

A container may still have the folder mounted and change it during the removal. So every name is
used only once, relative to an open folder, and symbolic links are never followed. A tree may be
deeper than the limits on path length and open files allow, so inner folders are first moved up to
the top folder and emptied there.

First the folder is quarantined, that is renamed within its parent: ``uid-a`` becomes
``.uid-a.<random>.removed``. Then it is cleared, in several calls if it is large.
"""

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_SUFFIX: Final = ".removed"


def quarantine(path: Path) -> Path | None:
    """Rename a folder so that only root can enter it; return its new path, None if there is none.

    Raises:
        OSError: It cannot be renamed.
    """
    moved = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_SUFFIX}")
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return None
        path.rename(moved)
    except FileNotFoundError:
        return None
    moved.chmod(0o700)
    return moved


def new_name() -> str:
    """Return a name under which quarantined_in() finds a folder, and nobody else does."""
    return f".{secrets.token_hex(16)}{_SUFFIX}"


def quarantined_in(folder: Path) -> list[Path]:
    """Return the folders that were quarantined here and are not removed yet.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if _is_quarantined(path.name))
    except FileNotFoundError:
        return []


def clear(folder: Path, *, most: int) -> bool:
    """Remove a folder with its content; return False if more calls are needed.

    Args:
        folder: A quarantined folder.
        most: Maximum number of entries to remove or move, so that the caller does not wait long.

    Raises:
        OSError: A part of it cannot be removed.
    """
    try:
        top = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return True
    try:
        steps = _Steps(most)
        while steps.left and (names := _names(top, steps.left)):
            for name in names:
                if steps.take():
                    _remove(name, top, steps)
        if not steps.left:
            return False
    finally:
        os.close(top)
    folder.rmdir()
    return True


class _Steps:
    def __init__(self, most: int) -> None:
        self.left = most

    def take(self) -> bool:
        """Use one step up; return False if none is left."""
        if not self.left:
            return False
        self.left -= 1
        return True


def _remove(name: str, top: int, steps: _Steps) -> None:
    """Remove an entry of the top folder; move the subfolders of a folder to the top first."""
    try:
        os.unlink(name, dir_fd=top)
    except IsADirectoryError:
        pass
    except FileNotFoundError:
        return
    else:
        return
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        for child in _names(inner, steps.left):
            if not steps.take():
                return
            try:
                os.unlink(child, dir_fd=inner)
            except IsADirectoryError:
                os.rename(child, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _names(folder: int, most: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry, _ in zip(entries, range(most), strict=False)]


def _is_quarantined(name: str) -> bool:
    return name.startswith(".") and name.endswith(_SUFFIX)
