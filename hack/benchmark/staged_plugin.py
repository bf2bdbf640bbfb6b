"""The node plugin with a clock: ``python -m benchmark.staged_plugin node-plugin FLAGS``.

The driver's own code runs unchanged. Before it starts, the functions in which its stages happen get
a wrapper that measures and then calls them; STAGES has the list. Each call of the kubelet becomes a
line of JSON in a file, which stages.py reads.

A stage within another one, such as files that are removed within a transaction, counts as itself
alone. Only the thread of the call is measured. What it waits for in other threads is `other`.
"""

import json
import os
import runpy
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

from benchmark.stages import VARIABLE
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.kubelet.dra import DraService
from tensorfusion_dra.state.ledger import Ledger

STAGES: Final[tuple[tuple[str, type, tuple[str, ...]], ...]] = (
    ("api", Api, ("call",)),
    ("ledger", Ledger, ("get", "has", "claims", "make_room")),
    ("cdi", Projection, ("put", "write", "is_written", "remove")),
)
"""Name of each stage, and the methods in which it happens; Ledger.transaction() comes on top."""


class Watch(threading.local):
    """Seconds of each stage in this thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._charge()
        self._running.append(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def _charge(self) -> None:
        """Charge the time since the last change to the innermost stage."""
        now = time.monotonic()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def measure(watch: Watch, log: Callable[[str], object]) -> None:
    """Wrap the methods of all stages, and those that the kubelet calls."""
    for stage, owner, methods in STAGES:
        for method in methods:
            _wrap(watch, stage, owner, method)
    transaction = Ledger.transaction

    @contextmanager
    def measured(ledger: Ledger) -> Iterator[Any]:
        with watch.stage("ledger"), transaction(ledger) as step:
            yield step

    Ledger.transaction = measured  # type: ignore[assignment, method-assign]
    for method in ("_prepare", "_unprepare"):
        _wrap_call(watch, method, log)


def _wrap(watch: Watch, stage: str, owner: type, method: str) -> None:
    original = getattr(owner, method)

    @wraps(original)
    def measured(*arguments: Any, **named: Any) -> Any:
        with watch.stage(stage):
            return original(*arguments, **named)

    setattr(owner, method, measured)


def _wrap_call(watch: Watch, method: str, log: Callable[[str], object]) -> None:
    original = getattr(DraService, method)

    def measured(service: DraService, request: Any, context: Any) -> Any:
        watch.seconds.clear()
        began = time.monotonic()
        with watch.stage("other"):
            answer = original(service, request, context)
        spans = {"began": began, "ended": time.monotonic(), **watch.seconds}
        log(json.dumps({"uid": request.claims[0].uid, **spans}) + "\n")
        return answer

    setattr(DraService, method, measured)


def main() -> None:
    file = os.open(Path(os.environ[VARIABLE]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    measure(Watch(), lambda line: os.write(file, line.encode()))
    runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
