"""Time of each stage of a call, from the marks of a node plugin with a clock (staged_plugin.py).

queue    from the call until the driver's function begins, in gRPC and its threads on both sides
api      requests to the API server, with the wait for their answers
ledger   reads and transactions, with the wait for the lock, the check of the claim and the commit
cdi      CDI spec, limits document and folders, written or removed
other    the rest of the driver's function
answer   from the end of the driver's function until the caller has the answer
"""

import json
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "BENCH_STAGES"
"""Environment variable with the path of the file of marks."""
NAMES: Final = ("queue", "api", "ledger", "cdi", "other", "answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A call as its caller saw it.

    Attributes:
        uid: UID of its first claim.
        began, ended: On the monotonic clock, which all processes share.
    """

    uid: str
    began: float
    ended: float


class Marks:
    """The marks of a node plugin, read as the plugin writes them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0
        self._unused: defaultdict[str, deque[dict[str, Any]]] = defaultdict(deque)

    def take(self, spans: Sequence[Span]) -> dict[str, list[float]]:
        """Return the milliseconds of each stage of these calls.

        Calls for the same claim are taken in the order in which they were made.
        """
        self._read()
        found: dict[str, list[float]] = {name: [] for name in NAMES}
        for span in spans:
            mark = self._unused[span.uid].popleft()
            mark["queue"] = mark["began"] - span.began
            mark["answer"] = span.ended - mark["ended"]
            for name in NAMES:
                found[name].append(mark.get(name, 0.0) * 1000)
        return found

    def skip(self) -> None:
        """Drop the marks of all calls until now."""
        self._read()
        self._unused.clear()

    def _read(self) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        for line in content.splitlines():
            mark = json.loads(line)
            self._unused[mark["uid"]].append(mark)
