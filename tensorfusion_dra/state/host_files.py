"""Files, sockets and folders of the host that the containers of a claim need."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.enforcer import Needs, TextFile
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state import atomic, folders, unix_sockets

_TEXT_MODE: Final = 0o644


class HostFiles:
    """Files and folders of the host that an enforcer needs, under the same paths as on the host.

    A folder is never created or removed through a symbolic link at its own path: containers write
    into these folders, and a link would redirect those writes to another place on the host.
    """

    def __init__(self, root: Path) -> None:
        """Args:
        root: Folder with a folder for each enforcer, in which are those of namespaces and the
            parents of claims' folders.
        """
        self._root = root

    def missing(self, needs: Needs) -> str:
        """Return which file or socket is missing, and what was found there; "" if none is."""
        for file in needs.files:
            try:
                Path(file).stat()
            except OSError as error:
                return f"{file}: {error.strerror or error}"
        for socket in needs.sockets:
            if reason := unix_sockets.reason(socket):
                return f"{socket}: {reason}"
        return ""

    def provide(self, needs: Needs) -> None:
        """Create the folders, set their modes and write the texts.

        Raises:
            RetryableError: Something cannot be created; the text has its path.
        """
        for folder in needs.folders:
            with errors(folder.path):
                path = Path(folder.path)
                folders.make(path.parent)
                # Another thread may create it in the meantime; the check below covers that.
                if not path.is_symlink():
                    path.mkdir(exist_ok=True)
                found = path.lstat().st_mode
                if not stat.S_ISDIR(found):
                    raise RetryableError(f"{path}: found something else, expected a folder")
                if stat.S_IMODE(found) != folder.mode:
                    # Root in a container may have given it to another user: its own loss, and no
                    # other's.
                    with suppress(PermissionError):
                        path.chmod(folder.mode)
        for text in needs.texts:
            with errors(text.path):
                _write(text)

    def remove(self, folder: str) -> None:
        """Remove a folder with everything that containers wrote; do nothing if there is none.

        Raises:
            RetryableError: The folder is still at its path.
        """
        with errors(folder):
            folders.remove(Path(folder))

    def delete_removed(self) -> list[str]:
        """Continue the removals that remove() left unfinished; return why some cannot be."""
        return folders.delete_removed(self._root.glob(f"*/*/{folders.REMOVED}"))

    def names(self, root: str) -> frozenset[str]:
        """Return the names of the folders in this folder; none if it does not exist.

        Raises:
            RetryableError: It cannot be read.
        """
        with errors(root):
            try:
                return frozenset(path.name for path in Path(root).iterdir() if path.is_dir())
            except FileNotFoundError:
                return frozenset()


def _write(file: TextFile) -> None:
    """Write the file unless it has the text; containers that mounted the old file keep that one."""
    path, content = Path(file.path), file.text.encode()
    with suppress(FileNotFoundError):
        if path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == _TEXT_MODE:
            return
    folders.make(path.parent)
    # After a power cut the file is written again, before a container can need it.
    atomic.write(path, content, mode=_TEXT_MODE, durable=False)


@contextmanager
def errors(path: str | Path) -> Iterator[None]:
    """Translate errors of the file system; the text has the path."""
    try:
        yield
    except OSError as error:
        raise RetryableError(f"{error.filename or path}: {error.strerror or error}") from error
