"""Files and folders of the host that containers of a claim depend on."""

import errno
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.enforcers.enforcer import Folder, Needs
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import folders, removal

_MOST_AT_ONCE: Final = 1000
"""Files and folders of a claim that are removed while other claims wait for the ledger."""
_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class HostFiles:
    """Files and folders of the host that an enforcer needs, by the same paths as on the host.

    A folder is never made or removed through a symbolic link in its own place: containers write
    into these folders, and a link would lead that elsewhere on the host.
    """

    def provide(self, needs: Needs) -> None:
        """Return once every file is there and every folder has its mode.

        Raises:
            RetryableError: A file is missing, or a folder cannot be made; the text has its path.
        """
        for file in needs.files:
            with _errors(file):
                Path(file).stat()
        for folder in needs.folders:
            with _errors(folder.path):
                _make(Path(folder.path), folder.mode)

    def withdraw(self, needs: Needs) -> None:
        """Remove the folders if they are empty; a hypervisor may have put something in them.

        Raises:
            RetryableError: A folder cannot be removed; the text has its path.
        """
        for folder in needs.folders:
            with _errors(folder.path):
                _remove(folder)

    def remove(self, folder: str) -> None:
        """Remove a folder, whatever containers put in it; do nothing if there is none.

        Returns once the folder is out of its place; remove_unfinished() removes what is left.

        Raises:
            RetryableError: It is still in its place.
        """
        with _errors(folder):
            aside = removal.quarantine(Path(folder))
            if aside is not None:
                removal.clear(aside, most=_MOST_AT_ONCE)

    def remove_unfinished(self, root: str) -> None:
        """Remove a part of what remove() left in this folder.

        Raises:
            RetryableError: Something cannot be removed now.
        """
        with _errors(root):
            for aside in removal.left_in(Path(root)):
                if not removal.clear(aside, most=_MOST_AT_ONCE):
                    return

    def names(self, root: str) -> frozenset[str]:
        """Return the names of the folders in this one; none if it does not exist.

        Raises:
            RetryableError: It cannot be read.
        """
        with _errors(root):
            try:
                return frozenset(path.name for path in Path(root).iterdir() if path.is_dir())
            except FileNotFoundError:
                return frozenset()


def _make(path: Path, mode: int) -> None:
    folders.make(path.parent)
    # Another thread may have made it meanwhile; what is there then is checked below.
    if not path.is_symlink():
        path.mkdir(exist_ok=True)
    found = path.lstat().st_mode
    if not stat.S_ISDIR(found):
        raise RetryableError(f"{path}: found no folder in this place, expected one")
    if stat.S_IMODE(found) != mode:
        path.chmod(mode)


def _remove(folder: Folder) -> None:
    path = Path(folder.path)
    if path.is_symlink() or not path.is_dir():
        return
    try:
        path.rmdir()
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetryableError(f"{error.filename or path}: {error.strerror or error}") from error
