"""Containers of the chart, whose scripts this machine's sh runs, with stand-ins for programs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import helm
from tests.support.chart_variants import VARIANTS
from tests.support.waiting import PATIENCE_SECONDS


def container(variant: str, name: str) -> dict[str, Any]:
    """Return a container of the chart with the values of a variant."""
    (one,) = (
        each for each in helm.containers(helm.render(VARIANTS[variant])) if each["name"] == name
    )
    return one


def variables(of: Mapping[str, Any]) -> dict[str, str]:
    """Return the container's environment."""
    return {entry["name"]: entry["value"] for entry in of["env"]}


def put_program(folder: Path, name: str, text: str) -> None:
    """Write a program that scripts find on their PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def stand_in_program(file: str) -> str:
    """Return a program that runs a Python file with its arguments."""
    return f'#!/bin/sh\nexec "{sys.executable}" -S -I "{file}" "$@"\n'


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container of the chart on a node that is a folder.

    Attributes:
        of: The container as the chart has it.
        root: The node's folder. The programs in `bin` come before those of this machine.
        given: Variables that differ from the chart's.
    """

    of: Mapping[str, Any]
    root: Path
    given: dict[str, str] = field(default_factory=dict)

    def put_program(self, name: str, text: str) -> None:
        """Write a stand-in for a program."""
        put_program(self.root / "bin", name, text)

    def put_mounts(self, *, mounted: bool, status: int = 0) -> Path:
        """Write stand-ins for the programs that mount; return the file with their calls."""
        calls = self.root / "calls"
        calls.touch()
        self.put_program("mountpoint", f"#!/bin/sh\nexit {int(not mounted)}\n")
        self.put_program("mount", f'#!/bin/sh\necho "$*" >>{calls}\nexit {status}\n')
        return calls

    def command(self) -> list[str]:
        """Return the container's command line."""
        return [*self.of["command"], *self.of.get("args", [])]

    def environment(self) -> dict[str, str]:
        """Return the environment of the container's processes."""
        path = f"{self.root}/bin:{os.environ['PATH']}"
        return {**os.environ, **variables(self.of), "PATH": path, **self.given}

    def run(self, line: list[str] | None = None, user: int | None = None) -> tuple[int, str]:
        """Run the container's command line, or another one; return its status and output."""
        ended = subprocess.run(
            line or self.command(),
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            user=user,
            start_new_session=True,
        )
        return ended.returncode, ended.stdout

    def probe(self, name: str) -> int:
        """Return the exit status of a probe."""
        return self.run(self.of[name]["exec"]["command"])[0]

    @contextmanager
    def started(self, output: str = "output") -> Iterator[subprocess.Popen[bytes]]:
        """Start the container; end it, with all that it started, after the block.

        Args:
            output: Name of the file for its output.
        """
        with (self.root / output).open("wb") as file:
            process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            # Also what the script left running, as a container runtime does.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)

    def text(self, output: str = "output") -> str:
        """Return the output so far of a container that was started."""
        return (self.root / output).read_text()

    def failed(self, output: str = "output") -> str:
        """Return the output of a container that ends with an error by itself."""
        with self.started(output) as process:
            assert process.wait(PATIENCE_SECONDS) == 1
        return self.text(output)
