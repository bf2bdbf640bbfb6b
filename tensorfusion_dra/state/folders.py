"""Folders on the host: created for other programs to enter, removed whatever containers left.

Containers write into the folders of their claims, and root in a container may give a folder and
what is in it to another user. This driver is root without capabilities, so it may be unable to read
or empty such a folder. It can always rename the folder, whose parent no container sees, but only
within that parent: a move into another one would change the folder itself. So ``claims/uid-a``
becomes ``claims/.<random>.removed`` at once, and is deleted later as far as possible. The rest
occupies no share and no name, and the next start of the pod deletes it (docs/adr/0041).

A container may still have the folder mounted and change it during the deletion. So every entry is
deleted relative to an open folder, and symbolic links are never followed. A tree may be deeper than
the limits on path length and open files allow, so inner folders are first moved up to the top
folder and emptied there.
"""

import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

REMOVED: Final = ".*.removed"
"""Pattern of the names of removed folders."""

_MODE: Final = 0o755
"""Readable for all: hypervisor, container runtimes and containers may run as other users."""
_MAX_AT_ONCE: Final = 1_000
"""Entries to delete while others wait for the store."""
_MAX_LATER: Final = 20_000
"""A container that still runs may create files as fast as they are deleted."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


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


def remove(path: Path) -> None:
    """Remove a folder with everything in it; do nothing if there is none.

    Return once it is no longer at its path. delete_removed() deletes the rest of a large one.

    Raises:
        OSError: It is still at its path.
    """
    # Not the folder's own name and more, which could be too long for a name.
    removed = path.with_name(f".{secrets.token_hex(16)}.removed")
    with suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISDIR(path.lstat().st_mode):
            path.rename(removed)
            with suppress(OSError):
                _delete(removed, _MAX_AT_ONCE)


def delete_removed(found: Iterable[Path]) -> list[str]:
    """Delete removed folders as far as possible; return why some of them cannot be deleted."""
    left = []
    for folder in found:
        try:
            _delete(folder, _MAX_LATER)
        except FileNotFoundError:
            pass  # by another thread
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                left.append(f"{folder}: {error.strerror or error}")
    return left


def _delete(folder: Path, most: int) -> None:
    """Delete a folder with its content, or as many entries of it.

    Raises:
        OSError: A part of it cannot be deleted, or more calls are needed.
    """
    top = os.open(folder, _FOLDER)
    try:
        locked: dict[str, OSError] = {}
        deque(islice(_emptied(top, locked), most), maxlen=0)
    finally:
        os.close(top)
    for error in locked.values():
        raise error
    folder.rmdir()


def _emptied(top: int, locked: dict[str, OSError]) -> Iterator[None]:
    """Delete what is in a folder; yield before each step, and add what cannot be deleted."""
    is_empty = False
    while not is_empty:
        is_empty = True
        # Not a list of all: a folder may have millions of entries.
        with os.scandir(top) as entries:
            for name in (entry.name for entry in entries if entry.name not in locked):
                is_empty = False
                yield
                try:
                    yield from _deleted(name, top)
                except OSError as error:
                    if error.errno not in {*_NOT_EMPTY, errno.ENOENT}:  # a container changed it
                        locked[name] = error


def _deleted(name: str, top: int) -> Iterator[None]:
    """Delete an entry of the top folder; of a folder with content, move the subfolders up."""
    if _is_deleted(name, top):
        return
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        with os.scandir(inner) as entries:
            for child in entries:
                yield
                if not _is_deleted(child.name, inner):
                    os.rename(child.name, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _is_deleted(name: str, folder: int) -> bool:
    """Delete a file or an empty folder; return False for a folder with content."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            raise
    return True
