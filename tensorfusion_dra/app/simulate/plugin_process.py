"""One node plugin as a process of its own, as a container runtime starts and ends it."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import tensorfusion_dra
from tensorfusion_dra.core.errors import RetryableError

_STOP_SECONDS: Final = 60.0
_TROUBLES: Final = frozenset({"warning", "error", "critical"})
_SHOWN: Final = 10
_NOT_SHOWN: Final = frozenset({"event", "level", "timestamp"})


class WaitError(RetryableError):
    """Something did not happen in time, or cannot happen any more.

    Attributes:
        summary: What was waited for and why that ended, in one line.
        details: What explains it, a line each: the last warnings and errors of every process, and
            what the caller knows.
    """

    def __init__(self, summary: str, details: Sequence[str]) -> None:
        super().__init__(summary)
        self.summary: Final = summary
        self.details: Final = tuple(details)

    def __str__(self) -> str:
        """Return summary and details, a line each."""
        return "\n  ".join((self.summary, *self.details))


class Process(Protocol):
    """What is needed of a subprocess.Popen."""

    @property
    def pid(self) -> int:
        """The process ID."""
        ...

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raise subprocess.TimeoutExpired if there is none by then."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


def spawn_command(command: Sequence[str], log_file: Path) -> Process:
    """Start a command line whose stderr is added to a file."""
    package_parent = Path(tensorfusion_dra.__file__).parent.parent
    with log_file.open("ab") as log:
        return subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL, cwd=package_parent)


spawn: Callable[[Sequence[str], Path], Process] = spawn_command
"""Starts a command line whose stderr is added to a file.

Tests put in its place what starts the same without importing everything anew.
"""


class PluginProcess:
    """Runs from its construction until stop() or kill(), or until it ends by itself.

    Attributes:
        log_file: What it says on stderr; further starts append to it.
        told_to_end: Whether its end is no surprise.
    """

    def __init__(self, command: Sequence[str], log_file: Path) -> None:
        """Starts it."""
        self.log_file: Final = log_file
        self.told_to_end = False
        self._process: Final = spawn(command, log_file)

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Sends SIGTERM and returns at once."""
        self.told_to_end = True
        self._process.terminate()

    def stop(self) -> int:
        """Ends it as a pod's end does, by SIGKILL if SIGTERM is not enough; its exit code."""
        self.terminate()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Ends it without a word, as the kernel does for want of memory; its exit code."""
        self.told_to_end = True
        self._process.kill()
        return self._process.wait()

    def last_line(self) -> str:
        """Return the last line of its log."""
        text = self._text().strip()
        return text.rpartition("\n")[2] or "it said nothing"

    def troubles(self) -> tuple[str, ...]:
        """Return its last warnings and errors, such as ``error fetch_failed: claim=a``.

        Lines that are not in the log's format, such as a traceback, are included as they are. If
        there is neither, the one line returned says so and shows the log's last line.
        """
        found = tuple(_troubles(self._text().splitlines()))[-_SHOWN:]
        return found or (f"no warning or error; last line: {self.last_line()}",)

    def _text(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")


def _troubles(lines: Sequence[str]) -> Iterator[str]:
    for line in filter(str.strip, lines):
        try:
            entry = json.loads(line)
            level, event = entry["level"], entry["event"]
        except (ValueError, TypeError, KeyError):
            yield line
            continue
        if level in _TROUBLES:
            facts = (f"{key}={value}" for key, value in entry.items() if key not in _NOT_SHOWN)
            yield f"{level} {event}: {' '.join(facts)}"
