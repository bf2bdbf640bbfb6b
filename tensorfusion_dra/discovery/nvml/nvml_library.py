"""Search and loading of NVIDIA's libnvidia-ml.so.1."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.host.driver_root import LIBRARY_FOLDERS

SONAME: Final = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLibrary:
    """A library in this process, and the file from which it was loaded.

    Attributes:
        name: Its path; the soname if the loader found it and /proc does not show its path.
        version: Identity of the file at that path; None if the path is unknown.
    """

    name: str
    calls: ctypes.CDLL
    version: tuple[int, int, int] | None

    def is_replaced(self) -> bool:
        """Return True if the path now leads to another file, or to none.

        The loader never loads the new file into a process that has the old one.
        """
        return self.version is not None and self.version != _version(self.name)


def candidates(library: Path | None, driver_root: Path) -> tuple[str, ...]:
    """Return the given library; otherwise those below the root, then the soname for the loader."""
    if library is not None:
        return (str(library),)
    files = (driver_root / folder / SONAME for folder in LIBRARY_FOLDERS)
    return (*(str(file) for file in files if file.is_file()), SONAME)


def load(names: Iterable[str]) -> LoadedLibrary:
    """Load the first of these that is an NVML library.

    Raises:
        RetryableError: None of them is; the text has the reason for each.
    """
    reasons: list[str] = []
    for name in names:
        version = _version(name)
        try:
            calls = ctypes.CDLL(name)
        except OSError as error:
            reasons.append(" ".join(str(error).split()))
            continue
        if hasattr(calls, "nvmlInitWithFlags"):
            if "/" in name:
                return LoadedLibrary(name=name, calls=calls, version=version)
            path = _mapped(name)
            return LoadedLibrary(name=path, calls=calls, version=_version(path))
        reasons.append(f"{name}: found no function nvmlInitWithFlags, expected NVML")
    raise RetryableError(f"NVML: {'; '.join(reasons)}; waiting for the NVIDIA driver's {SONAME}")


def _mapped(soname: str) -> str:
    """Return the path of a library that the loader found; its soname if /proc lacks it."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return soname
    stem = soname.removesuffix(".1")
    paths = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if f"/{stem}" in line)
    return next(paths, soname)


def _version(name: str) -> tuple[int, int, int] | None:
    if "/" not in name:
        return None
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
