"""Files that are either the old or the new one for every reader, also after a power cut."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".tmp"


def write(path: Path, content: bytes, *, mode: int) -> None:
    """Replaces the file in one step.

    The temporary file lies in the same folder, because a rename from another one is a creation
    to inotify, which container runtimes do not read CDI specs upon. Its name ends in .tmp, which
    they ignore, and begins with the file's own, by which unfinished() finds it after a crash.

    Raises:
        OSError: The old file, or none, is still there, and nothing else.
    """
    descriptor, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=_SUFFIX
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
