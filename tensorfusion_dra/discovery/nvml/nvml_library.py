"""NVIDIA's libnvidia-ml.so.1: where it is, and how it is loaded."""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.host.driver_root import LIBRARY_FOLDERS

SONAME: Final = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A library in this process, and the file that it came from.

    Attributes:
        name: Its path, also if the loader found it, as far as /proc tells.
        version: Tells one file at that path from another; None if its path is not known.
    """

    name: str
    calls: ctypes.CDLL
    version: tuple[int, int, int] | None

    def is_replaced(self) -> bool:
        """Whether the path now leads to another file, or to none.

        The loader never takes the new one into a process that has the old one.
        """
        return self.version is not None and self.version != _version(self.name)


def candidates(library: Path | None, driver_root: Path) -> tuple[str, ...]:
    """The library that was asked for; else those under the root, and then the loader's own."""
    if library is not None:
        return (str(library),)
    files = (driver_root / folder / SONAME for folder in LIBRARY_FOLDERS)
    return (*(str(file) for file in files if file.is_file()), SONAME)


def load(names: Iterable[str]) -> Loaded:
    """The first of them that is an NVML library.

    Raises:
        RetryableError: None of them is; the text says why for each.
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
                return Loaded(name=name, calls=calls, version=version)
            path = _mapped(name)
            return Loaded(name=path, calls=calls, version=_version(path))
        reasons.append(f"{name}: found no function nvmlInitWithFlags, expected NVML")
    raise RetryableError(f"NVML: {'; '.join(reasons)}; waiting for the NVIDIA driver's {SONAME}")


def _mapped(soname: str) -> str:
    """The path under which the loader found a library; its name alone if /proc does not tell."""
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
