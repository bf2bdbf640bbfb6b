"""Process of a node plugin or webhook, started and stopped as a container runtime does it."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import tensorfusion_dra
from tensorfusion_dra.core.errors import RetryableError

_STOP_SECONDS: Final = 60.0
_PROBLEM_LEVELS: Final = frozenset({"warning", "error", "critical"})
_MAX_SHOWN: Final = 10
_NOT_SHOWN: Final = frozenset({"event", "level", "timestamp"})


class WaitError(RetryableError):
    """A wait that timed out, or that failed because a process ended.

    Attributes:
        summary: One line with the awaited event and the reason.
        details: Lines that explain it: those of the caller, then the last warnings and errors of
            every process.
    """

    def __init__(self, summary: str, details: Sequence[str]) -> None:
        super().__init__(summary)
        self.summary: Final = summary
        self.details: Final = tuple(details)

    def __str__(self) -> str:
        """Return the summary and the details, each on a line of its own."""
        return "\n  ".join((self.summary, *self.details))


class Process(Protocol):
    """The part of subprocess.Popen that PluginProcess uses."""

    @property
    def pid(self) -> int:
        """Return the process ID."""

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise subprocess.TimeoutExpired if there is none in time."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


def spawn_command(command: Sequence[str], log_file: Path) -> Process:
    """Start a command line whose stderr is appended to a file."""
    package_parent = Path(tensorfusion_dra.__file__).parent.parent
    with log_file.open("ab") as log:
        return subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, cwd=package_parent)


spawn: Callable[[Sequence[str], Path], Process] = spawn_command
"""The function by which PluginProcess starts its process.

Tests replace it by one that forks a process with all modules imported, which is faster.
"""


class PluginProcess:
    """A process that runs from construction until stop() or kill(), or until it ends by itself.

    Attributes:
        log_file: File with its stderr; further processes append to it.
        is_stopping: Whether this object stopped it, so that its end is expected.
    """

    def __init__(self, command: Sequence[str], log_file: Path) -> None:
        """Start the process."""
        self.log_file: Final = log_file
        self.is_stopping = False
        self._process: Final = spawn(command, log_file)

    @property
    def pid(self) -> int:
        """Return the process ID."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM and return at once."""
        self.is_stopping = True
        self._process.terminate()

    def stop(self) -> int:
        """Send SIGTERM, then SIGKILL after a timeout, and return the exit code."""
        self.terminate()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Send SIGKILL, as the kernel does when memory runs out, and return the exit code."""
        self.is_stopping = True
        self._process.kill()
        return self._process.wait()

    def last_line(self) -> str:
        """Return the last line of the log."""
        text = self._text().strip()
        return text.rpartition("\n")[2] or "none, the log is empty"

    def problems(self) -> tuple[str, ...]:
        """Return the last warnings and errors, such as ``error fetch_failed: claim=a``.

        Lines that are not in the log's format, such as a traceback, are included as they are. If
        there are none, return one line that states this and shows the log's last line.
        """
        found = tuple(_problems(self._text().splitlines()))[-_MAX_SHOWN:]
        return found or (f"no warning or error; last line: {self.last_line()}",)

    def _text(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")


def _problems(lines: Sequence[str]) -> Iterator[str]:
    for line in filter(str.strip, lines):
        try:
            entry = json.loads(line)
            level, event = entry["level"], entry["event"]
        except (ValueError, TypeError, KeyError):
            yield line
            continue
        if level in _PROBLEM_LEVELS:
            facts = (f"{key}={value}" for key, value in entry.items() if key not in _NOT_SHOWN)
            yield f"{level} {event}: {' '.join(facts)}"
