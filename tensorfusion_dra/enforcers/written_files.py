"""Files that containers can write: read never through a link, never waiting, never whole."""

import mmap
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def opened(path: str, *, access: int = os.O_RDONLY) -> Iterator[int]:
    """Open a regular file; yield its descriptor.

    A tenant may have put a link to another file, a pipe or a device in its place.

    Args:
        path: Of the file.
        access: os.O_RDONLY or os.O_RDWR.

    Raises:
        OSError: It cannot be opened; FileNotFoundError if there is nothing at the path.
    """
    descriptor = os.open(path, access | _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "found something else, expected a regular file", path)
        yield descriptor
    finally:
        os.close(descriptor)


def write(descriptor: int, content: bytes, at: int) -> None:
    """Write into an open file without waiting for its lock; a file that is too short stays so.

    A container may hold the lock that a write takes for as long as it likes, by a long write of its
    own. So the file is mapped. The kernel copies into the mapping, as it reports a file that became
    too short meanwhile, where an access of this process would end it by a signal.

    Args:
        descriptor: Of a file that is open for reading and writing.
        content: At most a page.
        at: Its offset.

    Raises:
        OSError: The file is too short, or full.
    """
    start = at - at % mmap.PAGESIZE
    source = os.memfd_create("content", os.MFD_CLOEXEC)
    try:
        os.write(source, content)
        with (
            mmap.mmap(descriptor, at - start + len(content), offset=start) as mapped,
            memoryview(mapped) as whole,
            whole[at - start :] as part,
        ):
            if os.preadv(source, [part], 0) < len(content):
                raise OSError(0, "found a file that became too short")
    except ValueError as error:  # of mmap()
        raise OSError(0, f"found a file that is too short: {error}") from error
    finally:
        os.close(source)


def free_ratio(folder: str) -> float | None:
    """Return the part of a folder's file system that is free, of its space or of its files.

    Of both the smaller one, as either keeps new claims from getting their folders. None if there is
    no folder yet.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    free = [found.f_bavail / found.f_blocks if found.f_blocks else 1.0]
    if found.f_files:  # some file systems do not count them
        free.append(found.f_favail / found.f_files)
    return min(free)


def by_writer(folder: Path, claims: Mapping[str, str]) -> Mapping[str, int]:
    """Return how much each claim, or each pod, has in a folder: files, plus one for each page.

    Args:
        folder: With a folder for each claim, named by its UID, or for each pod: namespace/name.
        claims: Names of claims by UID.
    """
    counts: Counter[str] = Counter()
    left = [folder]
    while left:
        top, *rest = (path := left.pop()).relative_to(folder).parts or ("",)
        writer = claims.get(top) or "/".join((top, *rest[:1]))
        with suppress(OSError), os.scandir(path) as entries:  # a tenant may have locked it
            for entry in entries:
                counts[writer] += 1 + entry.stat(follow_symlinks=False).st_blocks // 8
                if entry.is_dir(follow_symlinks=False):
                    left.append(path / entry.name)
    return counts
