"""Run a command in a mount namespace of its own, with mounts at paths that need not exist.

usage: python namespace.py FOLDER '[["HOST_PATH", "PATH"], ...]' COMMAND...

FOLDER is an empty folder. The command gets it as its root, with everything of the machine's and the
mounts. Nothing is created on the machine's disks: a folder that lacks a path is replaced by one in
memory, in which each of its entries is mounted. It uses the standard library only, and needs root.
"""

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_NEWNS: Final = 0x00020000
_BIND: Final = 4096 | 16384
_PRIVATE: Final = (1 << 18) | 16384

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Make the namespace and become the command."""
    root = Path(sys.argv[1])
    mounts = [(Path(source), _resolved(Path(path))) for source, path in json.loads(sys.argv[2])]
    command = sys.argv[3:]
    working_folder = Path.cwd()
    if _LIBC.unshare(_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    _mount("none", Path("/"), "", _PRIVATE)
    _mount("gpu-check", root, "tmpfs", 0)
    replaced = {
        folder
        for _, path in mounts
        if not path.exists()
        for folder in path.parents
        if folder.is_dir()
    }
    _fill(Path("/"), root, replaced)
    for source, path in mounts:
        _bind(source, root / path.relative_to("/"))
    os.chroot(root)
    os.chdir(working_folder)
    os.execv(command[0], command)


def _resolved(path: Path) -> Path:
    """Return the path without links in the part of it that exists."""
    return Path(os.path.realpath(path))


def _fill(folder: Path, copy: Path, replaced: Iterable[Path]) -> None:
    """Mount the entries of a folder into its copy; those in `replaced` are filled in turn."""
    for entry in folder.iterdir():
        target = copy / entry.name
        if entry in replaced:
            target.mkdir()
            _fill(entry, target, replaced)
            target.chmod(entry.stat().st_mode & 0o7777)
        elif entry.is_symlink():
            target.symlink_to(entry.readlink())
        else:
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                _bind(entry, target)


def _bind(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir()
        else:
            target.touch()
    _mount(str(source), target, "", _BIND)


def _mount(source: str, target: Path, kind: str, flags: int) -> None:
    words = (source.encode(), os.fsencode(target), kind.encode())
    if _LIBC.mount(*words, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source}: {os.strerror(number)}", str(target))


if __name__ == "__main__":
    main()
