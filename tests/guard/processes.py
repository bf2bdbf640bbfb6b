"""Guard that lets only tests with the marker `process` or `sweep` start processes.

`make check` leaves those tests out, which is why it is fast. Without the guard, a test that starts
a process without the marker would slow it down unseen.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytest

MARKERS: Final = ("process", "sweep")
FORKED: Final = "tests.forks.start"
"""Audit event of a process that the process of ``tests.support.forks`` forks."""
_STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", FORKED})


class ProcessError(RuntimeError):
    """A process that a test without the marker wanted to start."""


class Guard:
    """Refuses processes of tests without a marker.

    Attributes:
        refused: What the current test wanted to start.
    """

    def __init__(self) -> None:
        """Guard this process from now on; it cannot be undone."""
        self.refused: list[str] = []
        self._is_closed = False
        sys.addaudithook(self._audit)

    @contextmanager
    def around(self, item: "pytest.Item") -> Iterator[None]:
        """Refuse processes during the block, unless the test has a marker."""
        self.refused = []
        self._is_closed = not any(item.get_closest_marker(name) for name in MARKERS)
        try:
            yield
        finally:
            self._is_closed = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_closed and event in _STARTS:
            what = f"{event} {arguments[1] if len(arguments) > 1 else ''}"[:200]
            self.refused.append(what)
            raise ProcessError(f"{what}: expected pytest.mark.process on a test with a process")
