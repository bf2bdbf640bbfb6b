"""Files and folders of the host that containers of a claim depend on."""

import errno
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.enforcers.enforcer import Folder, Needs
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import folders

_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class NodeFiles:
    """See ports.state.HostFiles. Paths are the same here as on the host.

    A folder is never made or removed through a symbolic link in its own place: containers write
    into these folders, and a link would lead that elsewhere on the host.
    """

    def provide(self, needs: Needs) -> None:
        """See ports.state.HostFiles."""
        for file in needs.files:
            with _errors(file):
                Path(file).stat()
        for folder in needs.folders:
            with _errors(folder.path):
                _make(Path(folder.path), folder.mode)

    def withdraw(self, needs: Needs) -> None:
        """See ports.state.HostFiles.

        Raises:
            RetryableError: Something of the folders cannot be removed; the text has its path.
        """
        for folder in needs.folders:
            with _errors(folder.path):
                _remove(folder)


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
    for name in folder.leftovers:
        file = path / name
        # A container may have made a folder of that name; then all of it stays.
        if file.is_symlink() or not file.is_dir():
            file.unlink(missing_ok=True)
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
