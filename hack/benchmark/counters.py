"""Counters of a node plugin's work, in memory that the bench shares with the process.

The preloaded library (counters.c) counts flushes and written files below the C library, so those
of SQLite count as well. A module in the process (counted_plugin.py) counts what only Python sees.
"""

import ctypes
import mmap
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

VARIABLE: Final = "BENCH_COUNTERS"
"""Environment variable with the path of the shared page."""

_SOURCE: Final = Path(__file__).with_suffix(".c")
_COMPILE_SECONDS: Final = 60


class CompilerError(Exception):
    """There is no C compiler."""


class _Page(ctypes.Structure):
    """The shared page; the layout is that of counters.c."""

    _fields_ = (
        ("flushes", ctypes.c_uint64),
        ("files_written", ctypes.c_uint64),
        ("transactions", ctypes.c_uint64),
        ("records_decoded", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Counts at one moment, since the start of the process."""

    flushes: int
    files_written: int
    transactions: int
    records_decoded: int


class Counters:
    """The counters of one process, from inside or outside of it."""

    def __init__(self, page: Path) -> None:
        """Open the page, or create one in which every counter is 0."""
        if not page.exists():
            page.write_bytes(bytes(ctypes.sizeof(_Page)))
        with page.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._page = _Page.from_buffer(self._memory)
        self._lock = Lock()  # guards the two counters that Python increments

    def add_transaction(self) -> None:
        with self._lock:
            self._page.transactions += 1

    def add_decoded_record(self) -> None:
        with self._lock:
            self._page.records_decoded += 1

    def work(self) -> Work:
        """Return what was counted until now."""
        return Work(
            flushes=self._page.flushes,
            files_written=self._page.files_written,
            transactions=self._page.transactions,
            records_decoded=self._page.records_decoded,
        )


def build(folder: Path) -> Path:
    """Compile the library to preload and return its path.

    Raises:
        CompilerError: There is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise CompilerError("counts: found no C compiler cc, expected one to count flushes")
    library = folder / "counters.so"
    strict = ["-O1", "-Wall", "-Wextra", "-Werror"]
    shared = ["-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run([compiler, *strict, *shared], check=True, timeout=_COMPILE_SECONDS)
    return library
