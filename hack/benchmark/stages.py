"""Time of each stage of a call, from the log of the node plugin (core/claims/operation.py).

The stages are those of the last claim of a call; its `queue` has the claims before it. What the
caller waited beyond them is `grpc`: gRPC and its threads on both sides, before and after.
"""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core.claims.operation import Stage

GRPC: Final = "grpc"
NAMES: Final = (GRPC, *(stage.value for stage in Stage))
_EVENTS: Final = ("claim_prepared", "claim_unprepared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A call as its caller saw it.

    Attributes:
        uid: UID of its last claim.
        began, ended: On the caller's clock, in seconds.
    """

    uid: str
    began: float
    ended: float


class Marks:
    """The closing lines of operations in a node plugin's log, read as the plugin writes them."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._offset = 0
        self._unused: defaultdict[str, deque[Mapping[str, float]]] = defaultdict(deque)

    def take(self, spans: Sequence[Span]) -> dict[str, list[float]]:
        """Return the milliseconds of each stage of these calls.

        Calls for the same claim are taken in the order in which they were made.
        """
        self._read()
        found: dict[str, list[float]] = {name: [] for name in NAMES}
        for span in spans:
            stages_ms = self._unused[span.uid].popleft()
            whole_ms = (span.ended - span.began) * 1000
            outside = {GRPC: round(whole_ms - sum(stages_ms.values()), 2)}
            for name in NAMES:
                found[name].append({**outside, **stages_ms}.get(name, 0.0))
        return found

    def skip(self) -> None:
        """Drop the stages of all calls until now."""
        self._read()
        self._unused.clear()

    def _read(self) -> None:
        if not self._log_file.exists():
            return
        with self._log_file.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]  # another line may be half written
        self._offset += len(whole)
        for line in whole.splitlines():
            facts: dict[str, Any] = json.loads(line)
            if facts["event"] in _EVENTS:
                self._unused[facts["claim_uid"]].append(facts["stages_ms"])
