"""Atomic file replacement: a reader sees the old or the new file, even after a power cut."""

import errno
import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

NO_FILE: Final = frozenset({errno.EISDIR, errno.ELOOP})
"""Errors of opening a path at which there is a folder, or a loop of links, instead of a file."""

_SUFFIX: Final = ".tmp"
_INSTANCE: Final = secrets.token_hex(4)
"""Part of the names of temporary files: two instances in two pods may have equal process IDs."""
_numbers: Final = itertools.count()


def write(path: Path, content: bytes, *, mode: int, durable: bool = True) -> None:
    """Replace the file in one step.

    The temporary file is in the same folder: inotify reports a rename from another folder as a
    creation, and container runtimes do not read CDI specs on creations. Its name ends in .tmp,
    which runtimes ignore, and starts with the name of the file, so that unfinished() finds it
    after a crash.

    Args:
        durable: Return only once the new file would survive a power cut. If False, a power cut
            may leave a partial file; a crash of this process leaves the old or the new one.

    Raises:
        OSError: The path is unchanged: it has the old file or none. No temporary file remains.
    """
    # Paths are strings here: a path object costs more than the system calls.
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{_INSTANCE}-{os.getpid()}-{next(_numbers)}{_SUFFIX}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        os.rename(temporary, path)  # noqa: PTH104 - see above
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108 - see above
        raise
    if durable:
        sync_folder(path.parent)


def unfinished(folder: Path, *, prefix: str, suffix: str) -> Iterator[Path]:
    """Yield the temporary files of writes, in progress or interrupted, to files of such names.

    Raises:
        OSError: The folder cannot be read.
    """
    for path in folder.iterdir():
        name, _, _ = path.name.removesuffix(_SUFFIX).rpartition(".")
        if path.name.endswith(_SUFFIX) and name.startswith(f".{prefix}") and name.endswith(suffix):
            yield path


def sync_folder(folder: Path) -> None:
    """Return once the folder's entries would survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
