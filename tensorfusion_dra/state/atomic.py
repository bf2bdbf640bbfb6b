"""Files that are either the old or the new one for every reader, also after a power cut."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NO_FILE: Final = frozenset({errno.EISDIR, errno.ELOOP})
"""What the system says where a folder, or a loop of links, is in the place of a file."""

_SUFFIX: Final = ".tmp"


def write(path: Path, content: bytes, *, mode: int, durable: bool = True) -> None:
    """Replaces the file in one step.

    The temporary file lies in the same folder, because a rename from another one is a creation
    to inotify, which container runtimes do not read CDI specs upon. Its name ends in .tmp, which
    they ignore, and begins with the file's own, by which unfinished() finds it after a crash.

    Args:
        durable: Returns only once the new file would survive a power cut. Without it a power cut
            may leave a part of the file; a crash of this process leaves the old or the new one.

    Raises:
        OSError: The old file, or none, is still there, and nothing else.
    """
    temporary = staged(path, content, mode=mode, durable=durable)
    try:
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def staged(path: Path, content: bytes, *, mode: int, durable: bool = True) -> Path:
    """A temporary file beside the path with this content: renamed to it, it replaces it at once.

    Raises:
        OSError: It is not there.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_SUFFIX)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def unfinished(folder: Path, *, prefix: str, suffix: str) -> Iterator[Path]:
    """The temporary files of writes, running or cut off, to files of such names.

    Raises:
        OSError: The folder cannot be read.
    """
    for path in folder.iterdir():
        name, _, _ = path.name.removesuffix(_SUFFIX).rpartition(".")
        if path.name.endswith(_SUFFIX) and name.startswith(f".{prefix}") and name.endswith(suffix):
            yield path


def remove(path: Path) -> bool:
    """Removes the file for good; False if there was none.

    Raises:
        OSError: It is still there.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Returns once the folder's entries would survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
