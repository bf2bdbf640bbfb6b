"""Remove folders into which containers wrote, whatever they put there.

A container may still have the folder mounted, and change it meanwhile. So every name is used once,
relative to an open folder, and a symbolic link is never followed. Trees may be deeper than paths
and open files allow: folders inside are moved up to the top, and are emptied there.
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
    """Put a folder out of its place, where only root gets at it; None if there is none.

    Raises:
        OSError: It cannot be moved.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_SUFFIX}")
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return None
        path.rename(aside)
    except FileNotFoundError:
        return None
    aside.chmod(0o700)
    return aside


def left_in(folder: Path) -> list[Path]:
    """Return the folders that were set aside here and are not removed yet.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if _is_aside(path.name))
    except FileNotFoundError:
        return []


def clear(folder: Path, *, most: int) -> bool:
    """Remove a folder with all that is in it; False if that takes more steps.

    Args:
        folder: Set aside before.
        most: Entries to remove or move at the most, so that nobody waits long for it.

    Raises:
        OSError: Something of it cannot be removed.
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
        """Whether there is a step left, which is taken then."""
        if not self.left:
            return False
        self.left -= 1
        return True


def _remove(name: str, top: int, steps: _Steps) -> None:
    """Remove an entry of the top folder; what is in it is moved up if it is a folder itself."""
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


def _is_aside(name: str) -> bool:
    return name.startswith(".") and name.endswith(_SUFFIX)
