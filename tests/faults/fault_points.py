"""Fault points: durable steps of a process at which it can be killed, and injected disk errors.

The process runs with a preloaded library (fault_points.c) and shares a page of memory with the
test. A first run is traced and lists the points that it passes, such as ``before rename to
/cdi/UID.json``. Each further run is killed at one of them.
"""

import ctypes
import mmap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stand_ins import libraries

VARIABLE: Final = "FAULT_POINTS"
"""Environment variable with the path of the shared page."""
_SOURCE: Final = Path(__file__).with_suffix(".c")


class _Page(ctypes.Structure):
    """The shared page; the layout is that of fault_points.c."""

    _fields_ = (
        ("mode", ctypes.c_int),
        ("wanted", ctypes.c_int),
        ("passed", ctypes.c_int),
        ("error", ctypes.c_int),
        ("room", ctypes.c_long),
        ("root", ctypes.c_char * 512),
        ("broken", ctypes.c_char * 512),
        ("point", ctypes.c_char * 1024),
    )


RECORDS: Final = "/claims/"
FEWEST_POINTS: Final = 6
_QUIET_SECONDS: Final = 0.5
_OFF, _TRACE, _KILL = range(3)


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A point before or after a durable step of a process.

    Attributes:
        name: For example ``before rename to /cdi/UID.json``.
        occurrence: Counts the passes of a point with this name, from 1.
    """

    name: str
    occurrence: int

    @property
    def is_before(self) -> bool:
        """True if the point is before its step."""
        return self.name.startswith("before ")

    @property
    def kind(self) -> str:
        """Kind of the step, such as ``rename``, ``request`` or ``write of a record``."""
        _, verb, *subject = self.name.split(" ")
        return f"{verb} of a record" if RECORDS in subject[-1] else verb

    def __str__(self) -> str:
        return f"{self.name} #{self.occurrence}"


def sample(points: Sequence[Point], *, share: float) -> Sequence[Point]:
    """Return a fixed sample: the first point of each kind, and more points, evenly spread.

    Args:
        share: Size of the sample as a share of the points, from 0 to 1; it has at least
            `FEWEST_POINTS`.
    """
    size = max(FEWEST_POINTS, round(len(points) * share))
    chosen = {[point.kind for point in points].index(kind) for kind in {p.kind for p in points}}
    others = [index for index in range(len(points)) if index not in chosen]
    wanted = min(len(others), max(0, size - len(chosen)))
    chosen |= {others[(2 * number + 1) * len(others) // (2 * wanted)] for number in range(wanted)}
    return [points[index] for index in sorted(chosen)]


def trace_of(page: Path) -> Path:
    """Return the file in which a process that shares this page writes the points that it passes."""
    return page.with_name(f"{page.name}.trace")


def build(folder: Path) -> Path:
    """Compile the library to preload and return its path.

    Raises:
        CompilerError: There is no C compiler, or it refused the source.
    """
    library = folder / "fault_points.so"
    libraries.compile_c(library, [str(_SOURCE)], ["-shared", "-fPIC", "-ldl"])
    return library


class FaultPoints:
    """Control of the fault points of all processes that share this page.

    Attributes:
        environment: Environment variables for starting such a process.
    """

    def __init__(self, page: Path, library: Path) -> None:
        """Create the page with all points disarmed."""
        page.write_bytes(bytes(ctypes.sizeof(_Page)))
        with page.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._page = _Page.from_buffer(self._memory)
        self._trace: Final = trace_of(page)
        self.environment: Final = {"LD_PRELOAD": str(library), VARIABLE: str(page)}

    def watch(self, root: Path) -> None:
        """Count changes below this folder as steps, in addition to writes to the API server."""
        self._page.root = str(root).encode()

    def trace(self) -> None:
        """Write each point that is passed from now on as a line of the trace."""
        self._page.mode = _TRACE

    @contextmanager
    def traced(self) -> Iterator[list[Point]]:
        """Yield a list that has, after the block, all points that were passed, in their order.

        The trace ends when no point has been passed for a moment.
        """
        self._trace.unlink(missing_ok=True)
        found: list[Point] = []
        self.trace()
        try:
            yield found
            self._await_quiet()
        finally:
            self._page.mode = _OFF
        seen: Counter[str] = Counter()
        for name in self._trace.read_text().splitlines() if self._trace.exists() else ():
            seen[name] += 1
            found.append(Point(name, seen[name]))

    def _await_quiet(self) -> None:
        known = -1
        while (size := self._trace.stat().st_size if self._trace.exists() else 0) != known:
            known = size
            time.sleep(_QUIET_SECONDS)

    def kill_at(self, point: Point) -> None:
        """Kill the process that passes this point next, and no other one."""
        self._page.mode = _OFF
        self._page.point = point.name.encode()
        self._page.wanted = point.occurrence
        self._page.passed = 0
        self._page.mode = _KILL

    def disarm(self) -> None:
        """Let processes pass all points again."""
        self._page.mode = _OFF

    @contextmanager
    def disk(self, folder: Path, error: int, *, room: int = 0) -> Iterator[None]:
        """Simulate a full (ENOSPC) or read-only (EROFS) disk below this folder.

        Args:
            room: Bytes that are left at the beginning on a full disk, where only removing files
                makes room.
        """
        self._page.broken = str(folder).encode()
        self._page.room = room
        self._page.error = error
        try:
            yield
        finally:
            self._page.error = 0
