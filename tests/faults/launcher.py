"""The test's end of launcher_child: node plugins that start in a few milliseconds."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


class Starter(Protocol):
    """Starts node plugins."""

    def start(self, log_file: Path, environment: Mapping[str, str], flags: Sequence[str]) -> int:
        """The process ID of a new node plugin with these flags."""
        ...

    def wait(self, pid: int, *, seconds: float = PATIENCE_SECONDS) -> int | None:
        """Its exit code once it has ended, negative for a signal; None if it has not by then."""
        ...


class Launcher:
    """Starts node plugins, each with the preloaded library of this launcher's environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.launcher_child"],
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, log_file: Path, environment: Mapping[str, str], flags: Sequence[str]) -> int:
        """See Starter."""
        arguments = ["node-plugin", *flags]
        return int(self._ask("start", str(log_file), dict(environment), arguments))

    def wait(self, pid: int, *, seconds: float = PATIENCE_SECONDS) -> int | None:
        """See Starter."""
        deadline = time.monotonic() + seconds
        while not (code := self._ask("ended", pid)):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.002)
        return int(code)

    def close(self) -> None:
        """Ends the launcher; its node plugins have ended before."""
        self._process.communicate(timeout=PATIENCE_SECONDS)

    def _ask(self, *question: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


class Commands:
    """Starts node plugins as a pod does, from their command line."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, log_file: Path, environment: Mapping[str, str], flags: Sequence[str]) -> int:
        """See Starter."""
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tensorfusion_dra", "node-plugin", *flags],
                env={**self._environment, **environment},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self._processes[process.pid] = process
        return process.pid

    def wait(self, pid: int, *, seconds: float = PATIENCE_SECONDS) -> int | None:
        """See Starter."""
        try:
            return self._processes[pid].wait(seconds)
        except subprocess.TimeoutExpired:
            return None
