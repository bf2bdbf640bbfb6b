"""Counters of a node plugin's work: lines of a trace that the process and the bench share.

The library of the fault tests (fault_points.c) traces flushes and created files below the C
library. A module in the process (counted_plugin.py) adds lines for what only Python sees.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TRANSACTION: Final = "after transaction"
DECODED_RECORD: Final = "after decode"
_FIGURES: Final = {
    "flushes": "after sync",
    "files_written": "after create",
    "transactions": TRANSACTION,
    "records_decoded": DECODED_RECORD,
}
"""First words of the lines that count for each figure.

The driver never writes into an existing file: each one is created anew.
"""


class Counters:
    """The counters of one process, from inside or outside of it."""

    def __init__(self, trace: Path) -> None:
        """Remember the trace, which is created if it is not there."""
        trace.touch()
        self._trace: Final = trace
        self._read_bytes = 0
        self._found: Final = Counter[bytes]()

    def add(self, step: str) -> None:
        """Count one step that only Python sees."""
        with self._trace.open("ab", buffering=0) as file:
            file.write(f"{step}\n".encode())

    def work(self) -> Mapping[str, int]:
        """Return each figure, since the start of the process."""
        with self._trace.open("rb") as file:
            file.seek(self._read_bytes)
            self._found.update(b" ".join(line.split()[:2]) for line in file)
            self._read_bytes = file.tell()
        return {name: self._found[step.encode()] for name, step in _FIGURES.items()}
